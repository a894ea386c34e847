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

    Readers(PythonFunction python, StructType schema) {
        this.python = python;
        this.schema = schema;
    }

    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException("it is read in batches");
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        Slice slice = (Slice) partition;
        return slice.plain
            ? (PartitionReader) new CaptainReader(slice, this.schema, this.python) : this.python.read(slice.pickled);
    }
}
