/* What one query needs of a table, and its tasks. */
package forelog.spark;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;

import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatch;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Asks Python for no more columns than a query needs, nor for positions and times that its filters rule out. */
class ForelogScanBuilder implements SupportsPushDownV2Filters, SupportsPushDownRequiredColumns,
        SupportsPushDownAggregates, SupportsPushDownLimit {

    /** The option by which Python is told of the ranges. */
    private static final String RANGES = "forelog.ranges";

    /** The option by which it is told that Java can read. */
    private static final String JAVA = "forelog.java";

    /** The options by which it is told that a query needs no more than aggregates, or than so many rows. */
    private static final String AGGREGATES = "forelog.aggregates";
    private static final String LIMIT = "forelog.limit";

    private final PythonDataSourceV2 source;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private StructType required;
    private Predicate[] filters = new Predicate[0];
    private Aggregates aggregates;
    private int limit;

    ForelogScanBuilder(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options) {
        this.source = source;
        this.schema = schema;
        this.required = schema;
        this.options = options;
    }

    /** Spark applies all of them to every row: they only save reading. */
    public Predicate[] pushPredicates(Predicate[] asked) {
        this.filters = asked;
        return asked;
    }

    public Predicate[] pushedPredicates() {
        return new Predicate[0];
    }

    /** Spark asks only if there is no filter to apply before. It puts together what the tasks give. */
    public boolean pushAggregation(Aggregation asked) {
        this.aggregates = Aggregates.of(asked, this.schema);
        if (this.aggregates != null) {
            StructType needed = this.aggregates.needed(this.schema);
            this.required = needed.isEmpty() ? new StructType().add(this.narrowest()) : needed;
        }
        return this.aggregates != null;
    }

    public boolean supportCompletePushDown(Aggregation asked) {
        return false;
    }

    /** Each task may give as many rows: Spark takes no more than it needs of all. */
    public boolean pushLimit(int rows) {
        this.limit = rows;
        return true;
    }

    public boolean isPartiallyPushed() {
        return true;
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
        Map told = new HashMap(this.options.asCaseSensitiveMap());
        told.put(JAVA, "true");
        if (this.filters.length > 0) {
            told.put(RANGES, Ranges.of(this.filters));
        }
        if (this.aggregates != null) {
            told.put(AGGREGATES, this.aggregates.json());
        } else if (this.limit > 0) {
            told.put(LIMIT, Integer.toString(this.limit));
        }
        CaseInsensitiveStringMap all = new CaseInsensitiveStringMap(told);
        return new ForelogScan(this.source, this.required, all, this.aggregates, this.limit);
    }
}

/** A scan in batches of columns, of a table or of a stream. */
class ForelogScan extends PythonScan implements SupportsReportStatistics {

    private final PythonDataSourceV2 source;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private final Aggregates aggregates;
    private final int limit;
    private ForelogBatch batch;

    ForelogScan(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options,
            Aggregates aggregates, int limit) {
        super(source, ForelogSource.NAME, schema, options, new Filter[0]);
        this.source = source;
        this.schema = schema;
        this.options = options;
        this.aggregates = aggregates;
        this.limit = limit;
    }

    public StructType readSchema() {
        return this.aggregates != null ? this.aggregates.result : this.schema;
    }

    /** It is planned once, whoever asks first. */
    public Batch toBatch() {
        if (this.batch == null) {
            this.batch = new ForelogBatch(this.source, this.schema, this.options, this.aggregates, this.limit);
        }
        return this.batch;
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        try {
            MicroBatchStream python = super.toMicroBatchStream(checkpoint);
            return new ForelogStream(python, this.schema, this.description());
        } catch (Throwable error) {
            Failure.plan(error);
            return null;
        }
    }

    public String description() {
        String path = this.options.containsKey("path") ? this.options.get("path") : this.options.get("paths");
        return "forelog " + path;
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        return Scan.ColumnarSupportMode.PARTITION_DEFINED;
    }

    /** By the bytes of log that its tasks read: a small one is worth sending to all executors for a join. */
    public Statistics estimateStatistics() {
        return new Size(((ForelogBatch) this.toBatch()).byteCount());
    }
}

final class Size implements Statistics {

    private final long byteCount;

    Size(long byteCount) {
        this.byteCount = byteCount;
    }

    public OptionalLong sizeInBytes() {
        return OptionalLong.of(this.byteCount);
    }

    public OptionalLong numRows() {
        return OptionalLong.empty();
    }
}

class ForelogBatch extends PythonBatch {

    private final StructType schema;
    private final Aggregates aggregates;
    private final int limit;
    private InputPartition[] tasks;

    ForelogBatch(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options,
            Aggregates aggregates, int limit) {
        super(source, ForelogSource.NAME, schema, options);
        this.schema = schema;
        this.aggregates = aggregates;
        this.limit = limit;
    }

    public InputPartition[] planInputPartitions() {
        if (this.tasks == null) {
            InputPartition[] planned = null;
            try {
                planned = super.planInputPartitions();
            } catch (Throwable error) {
                Failure.plan(error);
            }
            this.tasks = new InputPartition[planned.length];
            for (int i = 0; i < planned.length; i++) {
                this.tasks[i] = Slice.partition(((PythonInputPartition) planned[i]).pickedPartition());
            }
        }
        return this.tasks;
    }

    long byteCount() {
        long sum = 0;
        InputPartition[] planned = this.planInputPartitions();
        for (int i = 0; i < planned.length; i++) {
            sum += Bundle.byteCount(planned[i]);
        }
        return sum;
    }

    public PartitionReaderFactory createReaderFactory() {
        PythonPartitionReaderFactory factory = (PythonPartitionReaderFactory) super.createReaderFactory();
        return new Readers(new PythonFunction(factory), this.schema, this.aggregates, this.limit);
    }
}
