/*
 * The source `forelog` as Spark's planner sees it.
 *
 *   ForelogSource   the source and its table
 *   Ranges          which positions, times and logs a query's filters leave
 *   Aggregates      what a query asks for that needs no rows
 *   ForelogScan     columns, filters and aggregates of one query; its tasks, which Python plans
 *   ForelogStream   a stream, whose batches are read in the same way
 *   ForelogCatalog  logs by their paths, in SQL
 *   Failure         errors of Python, in one line
 *   Readers         who reads a task: Java or Python
 *   PythonReader    Arrow batches of a Python worker
 *
 * Options, planning, codecs and writing are Python's. Where these classes can't be compiled, because a Spark has
 * others underneath, or aren't there, the source in Python is used as it is, with the same rows.
 *
 * They are compiled by Janino, which every Spark has: so no lambdas, and no type arguments.
 */
package forelog.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
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
        return new ForelogTable(this, schema, properties);
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        try {
            return super.inferSchema(options);
        } catch (Throwable error) {
            Failure.plan(error);
            return null;
        }
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
    private final Map told;

    /** `told` are the options and properties of the table, which every query has, unless it says otherwise. */
    ForelogTable(PythonDataSourceV2 source, StructType schema, Map told) {
        super(source, ForelogSource.NAME, schema);
        this.schema = schema;
        this.told = told;
    }

    public String name() {
        return "forelog";
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new ForelogScanBuilder(ForelogSource.fresh(), this.schema, this.with(options));
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return super.newWriteBuilder(new WriteInfo(info, this.with(info.options())));
    }

    private CaseInsensitiveStringMap with(CaseInsensitiveStringMap options) {
        Map all = new HashMap();
        Iterator each = this.told.entrySet().iterator();
        while (each.hasNext()) {
            Map.Entry one = (Map.Entry) each.next();
            if (!options.containsKey(one.getKey())) {
                all.put(one.getKey(), one.getValue());
            }
        }
        all.putAll(options.asCaseSensitiveMap());
        return new CaseInsensitiveStringMap(all);
    }
}

/** What is written, with the options of its table. */
final class WriteInfo implements LogicalWriteInfo {

    private final LogicalWriteInfo given;
    private final CaseInsensitiveStringMap options;

    WriteInfo(LogicalWriteInfo given, CaseInsensitiveStringMap options) {
        this.given = given;
        this.options = options;
    }

    public CaseInsensitiveStringMap options() {
        return this.options;
    }

    public String queryId() {
        return this.given.queryId();
    }

    public StructType schema() {
        return this.given.schema();
    }
}
