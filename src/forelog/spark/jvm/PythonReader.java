/* What a Python worker reads. */
package forelog.spark;

import java.io.Serializable;
import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.List;

import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.util.TransferPair;
import org.apache.spark.PartitionEvaluator;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomTaskMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.AccumulatorV2;
import org.apache.spark.util.TaskCompletionListener;

import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.Iterator$;

/** The Python function that reads a task, as Spark has pickled it for its executors. */
final class PythonFunction implements Serializable {

    private final UserDefinedPythonDataSource source;
    private final byte[] function;
    private final StructType schema;
    private final scala.Option artifacts;
    private final scala.Option session;

    PythonFunction(PythonPartitionReaderFactory rows) {
        this.source = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$source;
        this.function = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$pickledReadFunc;
        this.schema = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$outputSchema;
        this.artifacts = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$jobArtifactUUID;
        this.session = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$sessionUUID;
    }

    PythonFunction(PythonStreamingPartitionReaderFactory rows) {
        this.source = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$source;
        this.function = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$pickledReadFunc;
        this.schema = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$outputSchema;
        this.artifacts = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$jobArtifactUUID;
        this.session = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$sessionUUID;
    }

    PythonReader read(byte[] pickled) {
        scala.collection.immutable.Map metrics = PythonCustomMetric.pythonMetrics();
        MapInBatchEvaluatorFactory factory = this.source.createMapInBatchEvaluatorFactory(
            this.function, "read_from_data_source", UserDefinedPythonDataSource.readInputSchema(), this.schema, metrics,
            this.artifacts, this.session);
        return new PythonReader(factory.createEvaluator(), pickled, metrics, this.schema.length());
    }
}

/**
 * The batches of one task, in Arrow, as the worker sends them.
 *
 * Spark's runner loads each batch into the same vectors. A query may still hold the one before, though: one with a
 * function in Python has batches under way to its worker and back. So the memory of each goes to vectors of its own,
 * without a copy. What was given is closed when the task ends.
 */
class PythonReader implements PartitionReader, TaskCompletionListener {

    private static final int[][] FIRST = {{0}};

    private final Iterator batches;
    private final scala.collection.immutable.Map metrics;
    private final int width;
    private final BufferAllocator memory;
    private final List given = new ArrayList();

    PythonReader(PartitionEvaluator evaluator, byte[] pickled, scala.collection.immutable.Map metrics, int width) {
        this.batches = start(evaluator, pickled);
        this.metrics = metrics;
        this.width = width;
        this.memory = ArrowUtils.rootAllocator().newChildAllocator("forelog", 0L, Long.MAX_VALUE);
        TaskContext.get().addTaskCompletionListener((TaskCompletionListener) this);
    }

    /** What the worker sends. The task goes to it as the only field of the only row of the only batch. */
    private static Iterator start(PartitionEvaluator evaluator, byte[] pickled) {
        Object row = new GenericInternalRow(new Object[] {new GenericInternalRow(new Object[] {pickled})});
        Object rows = Iterator$.MODULE$.single(row);
        TaskContext task = TaskContext.get();
        try {
            BasePythonRunner runner = (BasePythonRunner) runner().newInstance(new Object[] {evaluator, FIRST});
            return runner.compute(Iterator$.MODULE$.single(rows), task.partitionId(), task);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The runner is a class without a name in Spark, which makes rows of what it gets; it is asked before that. */
    static Constructor runner() throws ReflectiveOperationException {
        Class kind = Class.forName(MapInBatchEvaluatorFactory.class.getName() + "$MapInBatchEvaluator$$anon$1");
        if (!BasePythonRunner.class.isAssignableFrom(kind)) {
            throw new NoSuchMethodException(kind + " runs no Python");
        }
        Class evaluator = Class.forName(MapInBatchEvaluatorFactory.class.getName() + "$MapInBatchEvaluator");
        return kind.getConstructor(new Class[] {evaluator, int[][].class});
    }

    public boolean next() {
        try {
            return this.batches.hasNext();
        } catch (Throwable error) {
            Failure.read(error);
            return false;
        }
    }

    /** A worker sends its columns as the fields of one. */
    public Object get() {
        ColumnarBatch batch = (ColumnarBatch) this.batches.next();
        ArrowColumnVector fields = (ArrowColumnVector) batch.column(0);
        ColumnVector[] columns = new ColumnVector[this.width];
        for (int i = 0; i < this.width; i++) {
            TransferPair pair = ((ArrowColumnVector) fields.getChild(i)).getValueVector().getTransferPair(this.memory);
            pair.transfer();
            this.given.add(pair.getTo());
            columns[i] = new ArrowColumnVector(pair.getTo());
        }
        return new ColumnarBatch(columns, batch.numRows());
    }

    public void onTaskCompletion(TaskContext task) {
        for (int i = 0; i < this.given.size(); i++) {
            ((ValueVector) this.given.get(i)).close();
        }
        if (this.memory.getAllocatedMemory() == 0) {  // or another thread is about to let go of the rest
            this.memory.close();
        }
    }

    public CustomTaskMetric[] currentMetricsValues() {
        CustomTaskMetric[] values = new CustomTaskMetric[this.metrics.size()];
        Iterator each = this.metrics.iterator();
        for (int i = 0; i < values.length; i++) {
            Tuple2 one = (Tuple2) each.next();
            Long value = (Long) ((AccumulatorV2) one._2()).value();
            values[i] = new PythonCustomTaskMetric((String) one._1(), value.longValue());
        }
        return values;
    }

    public void close() {}
}
