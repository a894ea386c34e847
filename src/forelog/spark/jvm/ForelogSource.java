/*
 * The source `forelog` as Spark's planner sees it: Spark's own source for Python, with three things that it lacks.
 *
 *   columns   a query that needs some of a table's columns has only those read, as from Parquet
 *   filters   are pushed down for the query that has them, and forgotten after it
 *   batches   what the Python workers send is Arrow, and goes into the query as columns, where Spark would first
 *             make a row of each record
 *
 * Everything else (options, planning, reading, streams, writing) is Python's. Where these classes can't be compiled,
 * because a Spark has others underneath, or aren't there, the source in Python is used as it is, with the same rows.
 *
 * It is compiled by Janino, which every Spark has: so no lambdas, and no type arguments.
 */
package forelog.spark;

import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.util.TransferPair;
import org.apache.spark.PartitionEvaluator;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatch;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomTaskMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.AccumulatorV2;
import org.apache.spark.util.TaskCompletionListener;

import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.Iterator$;

/** What `format("forelog")` finds; the source in Python goes by another name then. */
public class ForelogSource extends PythonDataSourceV2 implements DataSourceRegister {

    static final String NAME = "forelog_python";

    public String shortName() {
        return "forelog";
    }

    public void setShortName(String name) {
        super.setShortName(NAME);
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new ColumnsTable(this, schema);
    }

    /** Whether this Spark has what is asked for by name, which no compiler can tell. Called when it is built. */
    public static void check() throws ReflectiveOperationException {
        ColumnsFactory.runner();
    }

    /**
     * One for each scan. Spark's keeps the plan that it made first, with the filters of that query, and would read
     * no more than that for every query on the same data frame.
     */
    static PythonDataSourceV2 fresh() {
        PythonDataSourceV2 source = new ForelogSource();
        source.setShortName(NAME);
        return source;
    }
}

/** A table that is read through a ColumnsScanBuilder, and written to as ever. */
class ColumnsTable extends PythonTable {

    private final StructType schema;

    ColumnsTable(PythonDataSourceV2 source, StructType schema) {
        super(source, ForelogSource.NAME, schema);
        this.schema = schema;
    }

    public String name() {
        return "forelog";
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new ColumnsScanBuilder(ForelogSource.fresh(), this.schema, options);
    }
}

/**
 * Asks Python for no more columns than a query needs.
 *
 * A source in Python is told of filters together with its columns, and plans at once. Spark pushes filters first, so
 * that they are kept here until the columns are known too. All of them stay Spark's to apply, as Python would have it.
 */
class ColumnsScanBuilder extends PythonScanBuilder implements SupportsPushDownRequiredColumns {

    private final PythonDataSourceV2 source;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private StructType required;
    private Filter[] filters = new Filter[0];

    ColumnsScanBuilder(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options) {
        super(source, ForelogSource.NAME, schema, options);
        this.source = source;
        this.schema = schema;
        this.required = schema;
        this.options = options;
    }

    public Filter[] pushFilters(Filter[] asked) {
        this.filters = asked;
        return asked;
    }

    public Filter[] pushedFilters() {
        return new Filter[0];
    }

    public void pruneColumns(StructType asked) {
        Set names = new HashSet();
        StructField[] fields = asked.fields();
        for (int i = 0; i < fields.length; i++) {
            names.add(fields[i].name());
        }
        StructType kept = new StructType();
        StructField[] all = this.schema.fields();
        for (int i = 0; i < all.length; i++) {
            if (names.contains(all[i].name())) {
                kept = kept.add(all[i]);
            }
        }
        this.required = kept.isEmpty() ? new StructType().add(this.narrowest()) : kept;
    }

    /** To count rows, a column is needed all the same: the one that is the least to send. */
    private StructField narrowest() {
        StructField[] all = this.schema.fields();
        StructField found = all[0];
        for (int i = 1; i < all.length; i++) {
            if (all[i].dataType().defaultSize() < found.dataType().defaultSize()) {
                found = all[i];
            }
        }
        return found;
    }

    public Scan build() {
        if (this.filters.length > 0) {
            new PythonScanBuilder(this.source, ForelogSource.NAME, this.required, this.options)
                .pushFilters(this.filters);
        }
        return new ColumnsScan(this.source, this.required, this.options, this.filters);
    }
}

/** A scan in batches; a stream goes on in rows. */
class ColumnsScan extends PythonScan {

    private final PythonDataSourceV2 source;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;

    ColumnsScan(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options, Filter[] filters) {
        super(source, ForelogSource.NAME, schema, options, filters);
        this.source = source;
        this.schema = schema;
        this.options = options;
    }

    public Batch toBatch() {
        return new ColumnsBatch(this.source, this.schema, this.options);
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        return Scan.ColumnarSupportMode.PARTITION_DEFINED;
    }
}

class ColumnsBatch extends PythonBatch {

    ColumnsBatch(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options) {
        super(source, ForelogSource.NAME, schema, options);
    }

    public PartitionReaderFactory createReaderFactory() {
        return new ColumnsFactory((PythonPartitionReaderFactory) super.createReaderFactory());
    }
}

/** The Python workers that Spark would start, and what they send, as it comes. */
class ColumnsFactory implements PartitionReaderFactory {

    private static final int[][] FIRST = {{0}};

    private final UserDefinedPythonDataSource source;
    private final byte[] function;
    private final StructType schema;
    private final scala.Option artifacts;
    private final scala.Option session;

    ColumnsFactory(PythonPartitionReaderFactory rows) {
        this.source = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$source;
        this.function = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$pickledReadFunc;
        this.schema = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$outputSchema;
        this.artifacts = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$jobArtifactUUID;
        this.session = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$sessionUUID;
    }

    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException("it is read in batches");
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        scala.collection.immutable.Map metrics = PythonCustomMetric.pythonMetrics();
        MapInBatchEvaluatorFactory factory = this.source.createMapInBatchEvaluatorFactory(
            this.function, "read_from_data_source", UserDefinedPythonDataSource.readInputSchema(), this.schema, metrics,
            this.artifacts, this.session);
        byte[] pickled = ((PythonInputPartition) partition).pickedPartition();
        return new ColumnsReader(start(factory.createEvaluator(), pickled), metrics, this.schema.length());
    }

    /** What the worker sends. The partition goes to it as the only field of the only row of the only batch. */
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
}

/**
 * Batch after batch of one task.
 *
 * Spark's runner loads each batch into the same vectors. A query may still hold the one before, though: one with a
 * function in Python has batches under way to its worker and back. So the memory of each goes to vectors of its own,
 * without a copy. Who has read a batch closes it; what nobody did is closed when the task ends.
 */
class ColumnsReader implements PartitionReader, TaskCompletionListener {

    private final Iterator batches;
    private final scala.collection.immutable.Map metrics;
    private final int width;
    private final BufferAllocator memory;
    private final List given = new ArrayList();

    ColumnsReader(Iterator batches, scala.collection.immutable.Map metrics, int width) {
        this.batches = batches;
        this.metrics = metrics;
        this.width = width;
        this.memory = ArrowUtils.rootAllocator().newChildAllocator("forelog", 0L, Long.MAX_VALUE);
        TaskContext.get().addTaskCompletionListener((TaskCompletionListener) this);
    }

    public boolean next() {
        return this.batches.hasNext();
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
