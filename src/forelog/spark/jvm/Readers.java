/* Who reads a task. */
package forelog.spark;

import java.io.IOException;

import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

/** Java, if Python has said that it can; else Python. */
final class Readers implements PartitionReaderFactory {

    private final PythonFunction python;
    private final StructType schema;
    private final Aggregates aggregates;
    private final int limit;

    /** Without `aggregates` rows are read; of them as many as `limit`, unless that is 0. */
    Readers(PythonFunction python, StructType schema, Aggregates aggregates, int limit) {
        this.python = python;
        this.schema = schema;
        this.aggregates = aggregates;
        this.limit = limit;
    }

    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException("it is read in batches");
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        if (partition instanceof Slice && ((Slice) partition).known != null) {
            return new AggregateReader(this.aggregates, ((Slice) partition).known);
        }
        PartitionReader rows = partition instanceof Slice ? this.rows((Slice) partition) : this.rows((Bundle) partition);
        if (this.aggregates != null) {
            return new AggregateReader(this.aggregates, rows, this.schema);
        }
        return this.limit > 0 ? new LimitReader(rows, this.limit) : rows;
    }

    PartitionReader rows(Slice slice) {
        return slice.plain
            ? (PartitionReader) new CaptainReader(slice, this.schema, this.python) : this.python.read(slice.pickled);
    }

    private PartitionReader rows(Bundle bundle) {
        return bundle.plain() ? (PartitionReader) new ChainReader(this, bundle.slices) : this.python.read(bundle.pickled);
    }
}

/** The rows of slices, one after the other. */
final class ChainReader implements PartitionReader {

    private final Readers readers;
    private final Slice[] slices;
    private int turn;
    private PartitionReader reader;

    ChainReader(Readers readers, Slice[] slices) {
        this.readers = readers;
        this.slices = slices;
    }

    public boolean next() throws IOException {
        while (true) {
            if (this.reader == null) {
                if (this.turn >= this.slices.length) {
                    return false;
                }
                this.reader = this.readers.rows(this.slices[this.turn++]);
            }
            if (this.reader.next()) {
                return true;
            }
            this.close();
        }
    }

    public Object get() {
        return this.reader.get();
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return this.reader == null ? new CustomTaskMetric[0] : this.reader.currentMetricsValues();
    }

    public void close() throws IOException {
        if (this.reader != null) {
            this.reader.close();
            this.reader = null;
        }
    }
}
