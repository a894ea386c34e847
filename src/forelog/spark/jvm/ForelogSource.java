/*
 * The source `forelog` as Spark's planner sees it.
 *
 *   ForelogSource   the source and its table
 *   Ranges          which positions, times and logs a query's filters leave
 *   ForelogScan     columns, filters and aggregates of one query; its tasks, which Python plans
 *   Readers         who reads a task: Java or Python
 *   PythonReader    Arrow batches of a Python worker
 *
 * Options, planning, codecs and writing are Python's. Where these classes can't be compiled, because a Spark has
 * others underneath, or aren't there, the source in Python is used as it is, with the same rows.
 *
 * They are compiled by Janino, which every Spark has: so no lambdas, and no type arguments.
 */
package forelog.spark;

import java.util.Map;

import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

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
        return new ForelogTable(this, schema);
    }

    /** Whether this Spark has what is asked for by name, which no compiler can tell. Called when it is built. */
    public static void check() throws ReflectiveOperationException {
        PythonReader.runner();
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

/** A table that is read through a ForelogScanBuilder, and written to as ever. */
class ForelogTable extends PythonTable {

    private final StructType schema;

    ForelogTable(PythonDataSourceV2 source, StructType schema) {
        super(source, ForelogSource.NAME, schema);
        this.schema = schema;
    }

    public String name() {
        return "forelog";
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new ForelogScanBuilder(ForelogSource.fresh(), this.schema, options);
    }
}
