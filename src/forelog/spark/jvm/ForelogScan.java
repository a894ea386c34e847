/* What one query needs of a table, and its tasks. */
package forelog.spark;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
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
class ForelogScanBuilder implements SupportsPushDownV2Filters, SupportsPushDownRequiredColumns {

    /** The option by which Python is told of the ranges. */
    private static final String RANGES = "forelog.ranges";

    /** The option by which it is told that Java can read. */
    private static final String JAVA = "forelog.java";

    private final PythonDataSourceV2 source;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private StructType required;
    private Predicate[] filters = new Predicate[0];

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
        return new ForelogScan(this.source, this.required, new CaseInsensitiveStringMap(told));
    }
}

/** A scan in batches of columns; a stream continues in rows. */
class ForelogScan extends PythonScan {

    private final PythonDataSourceV2 source;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;

    ForelogScan(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options) {
        super(source, ForelogSource.NAME, schema, options, new Filter[0]);
        this.source = source;
        this.schema = schema;
        this.options = options;
    }

    public Batch toBatch() {
        return new ForelogBatch(this.source, this.schema, this.options);
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        return Scan.ColumnarSupportMode.PARTITION_DEFINED;
    }
}

class ForelogBatch extends PythonBatch {

    private final StructType schema;

    ForelogBatch(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options) {
        super(source, ForelogSource.NAME, schema, options);
        this.schema = schema;
    }

    public InputPartition[] planInputPartitions() {
        InputPartition[] planned = super.planInputPartitions();
        InputPartition[] tasks = new InputPartition[planned.length];
        for (int i = 0; i < planned.length; i++) {
            tasks[i] = Slice.of(((PythonInputPartition) planned[i]).pickedPartition());
        }
        return tasks;
    }

    public PartitionReaderFactory createReaderFactory() {
        PythonPartitionReaderFactory factory = (PythonPartitionReaderFactory) super.createReaderFactory();
        return new Readers(new PythonFunction(factory), this.schema);
    }
}
