/* Logs by their paths in SQL: SELECT * FROM forelog.`/var/log/orders.log`. */
package forelog.spark;

import java.util.HashMap;
import java.util.Map;

import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table's name is the path of a log, which is read with the codec that fits it. There is nothing to create. */
public class ForelogCatalog implements TableCatalog {

    private String name;

    public void initialize(String given, CaseInsensitiveStringMap options) {
        this.name = given;
    }

    public String name() {
        return this.name;
    }

    public Identifier[] listTables(String[] namespace) {
        return new Identifier[0];
    }

    public Table loadTable(Identifier table) throws NoSuchTableException {
        if (table.namespace().length > 0) {
            throw new NoSuchTableException(table);
        }
        Map told = new HashMap();
        told.put("path", table.name());
        told.put("codec", "auto");
        ForelogSource source = new ForelogSource();
        source.setShortName(ForelogSource.NAME);
        StructType schema = source.inferSchema(new CaseInsensitiveStringMap(told));
        return new ForelogTable(source, schema, told);
    }

    public boolean tableExists(Identifier table) {
        return true;  // loading it says what is wrong
    }

    public Table createTable(Identifier table, StructType schema, Transform[] partitions, Map properties) {
        throw this.fixed();
    }

    public Table alterTable(Identifier table, TableChange[] changes) {
        throw this.fixed();
    }

    public boolean dropTable(Identifier table) {
        throw this.fixed();
    }

    public void renameTable(Identifier table, Identifier other) {
        throw this.fixed();
    }

    private UnsupportedOperationException fixed() {
        return new UnsupportedOperationException(
            "logs are read by their paths here. To give one a name: CREATE TABLE name USING forelog LOCATION 'path'");
    }
}
