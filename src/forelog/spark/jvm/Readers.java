/* Who reads a task. */
package forelog.spark;

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
        Slice slice = (Slice) partition;
        if (slice.known != null) {
            return new AggregateReader(this.aggregates, slice.known);
        }
        PartitionReader rows = slice.plain
            ? (PartitionReader) new CaptainReader(slice, this.schema, this.python) : this.python.read(slice.pickled);
        if (this.aggregates != null) {
            return new AggregateReader(this.aggregates, rows, this.schema);
        }
        return this.limit > 0 ? new LimitReader(rows, this.limit) : rows;
    }
}
