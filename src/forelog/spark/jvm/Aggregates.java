/* Queries that ask for nothing but the number of rows, or the least and greatest position or time. */
package forelog.spark;

import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;

/**
 * What is asked for. Each task gives one row with its part of it, and Spark puts the parts together.
 *
 * Python looks into the indexes of whole segments, and plans tasks for the others.
 */
final class Aggregates implements Serializable {

    private static final Set COLUMNS = new HashSet(Arrays.asList(new Object[] {"segment", "offset", "time"}));

    final String[] kinds;
    /** Null for a count of rows. */
    final String[] columns;
    /** The columns of a task's row. */
    final StructType result;

    private Aggregates(String[] kinds, String[] columns, StructType result) {
        this.kinds = kinds;
        this.columns = columns;
        this.result = result;
    }

    /** Null if it asks for anything else. */
    static Aggregates of(Aggregation asked, StructType schema) {
        AggregateFunc[] each = asked.aggregateExpressions();
        if (asked.groupByExpressions().length > 0 || each.length == 0) {
            return null;
        }
        String[] kinds = new String[each.length];
        String[] columns = new String[each.length];
        StructType result = new StructType();
        for (int i = 0; i < each.length; i++) {
            DataType type = DataTypes.LongType;
            if (each[i] instanceof CountStar) {
                kinds[i] = "count";
            } else if (each[i] instanceof Count && !((Count) each[i]).isDistinct()) {
                kinds[i] = "count";
                columns[i] = column(((Count) each[i]).column(), schema);
            } else if (each[i] instanceof Min) {
                kinds[i] = "min";
                columns[i] = column(((Min) each[i]).column(), schema);
            } else if (each[i] instanceof Max) {
                kinds[i] = "max";
                columns[i] = column(((Max) each[i]).column(), schema);
            } else {
                return null;
            }
            if (columns[i] == null && !(each[i] instanceof CountStar)) {
                return null;
            }
            if (!kinds[i].equals("count")) {
                type = schema.apply(columns[i]).dataType();
            }
            result = result.add(kinds[i] + i, type, true);
        }
        return new Aggregates(kinds, columns, result);
    }

    /** The name of a column of positions or times, as numbers; null for any other. */
    private static String column(Expression one, StructType schema) {
        if (!(one instanceof NamedReference)) {
            return null;
        }
        String[] path = ((NamedReference) one).fieldNames();
        if (path.length != 1 || !COLUMNS.contains(path[0])) {
            return null;
        }
        DataType type = schema.apply(path[0]).dataType();
        boolean number = type.equals(DataTypes.IntegerType) || type.equals(DataTypes.LongType);
        return number || type.equals(DataTypes.TimestampType) ? path[0] : null;
    }

    /** The columns that have to be read for it; maybe none. */
    StructType needed(StructType schema) {
        StructType kept = new StructType();
        StructField[] all = schema.fields();
        for (int i = 0; i < all.length; i++) {
            if (Arrays.asList((Object[]) this.columns).contains(all[i].name())) {
                kept = kept.add(all[i]);
            }
        }
        return kept;
    }

    /** For Python: `[["count", null], ["min", "time"]]`. */
    String json() {
        List pairs = new ArrayList();
        for (int i = 0; i < this.kinds.length; i++) {
            pairs.add(new String[] {this.kinds[i], this.columns[i]});
        }
        try {
            return new ObjectMapper().writeValueAsString(pairs);
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }

    /** A row of these values, of which some may be null. */
    ColumnarBatch row(Long[] values) {
        StructField[] fields = this.result.fields();
        ColumnVector[] vectors = new ColumnVector[fields.length];
        for (int i = 0; i < fields.length; i++) {
            vectors[i] = new One(fields[i].dataType(), values[i]);
        }
        return new ColumnarBatch(vectors, 1);
    }
}

/** A column of one row. */
final class One extends Column {

    private final Long value;

    One(DataType type, Long value) {
        super(type);
        this.value = value;
    }

    public boolean hasNull() {
        return this.value == null;
    }

    public int numNulls() {
        return this.value == null ? 1 : 0;
    }

    public boolean isNullAt(int row) {
        return this.value == null;
    }

    public int getInt(int row) {
        return this.value.intValue();
    }

    public long getLong(int row) {
        return this.value.longValue();
    }
}

/** The aggregates of one task: of the rows that another reader reads, or known ones. */
final class AggregateReader implements PartitionReader {

    private final Aggregates asked;
    private final PartitionReader rows;
    private final StructType schema;
    private Long[] values;
    private boolean done;

    AggregateReader(Aggregates asked, PartitionReader rows, StructType schema) {
        this.asked = asked;
        this.rows = rows;
        this.schema = schema;
    }

    AggregateReader(Aggregates asked, Long[] known) {
        this(asked, null, null);
        this.values = known;
    }

    public boolean next() throws IOException {
        if (this.done) {
            return false;
        }
        this.done = true;
        if (this.rows != null) {
            this.read();
        }
        return true;
    }

    private void read() throws IOException {
        int width = this.asked.kinds.length;
        this.values = new Long[width];
        for (int i = 0; i < width; i++) {
            this.values[i] = this.asked.kinds[i].equals("count") ? Long.valueOf(0) : null;
        }
        while (this.rows.next()) {
            ColumnarBatch batch = (ColumnarBatch) this.rows.get();
            for (int i = 0; i < width; i++) {
                this.add(i, batch);
            }
        }
    }

    private void add(int place, ColumnarBatch batch) {
        String name = this.asked.columns[place];
        long known = this.values[place] == null ? 0 : this.values[place].longValue();
        if (name == null) {
            this.values[place] = Long.valueOf(known + batch.numRows());
            return;
        }
        String kind = this.asked.kinds[place];
        int index = this.schema.fieldIndex(name);
        ColumnVector column = batch.column(index);
        boolean narrow = this.schema.fields()[index].dataType().equals(DataTypes.IntegerType);
        boolean any = this.values[place] != null;
        for (int row = 0; row < batch.numRows(); row++) {
            if (column.isNullAt(row)) {
                continue;
            }
            if (kind.equals("count")) {
                known++;
                continue;
            }
            long value = narrow ? column.getInt(row) : column.getLong(row);
            known = !any ? value : kind.equals("min") ? Math.min(known, value) : Math.max(known, value);
            any = true;
        }
        this.values[place] = any ? Long.valueOf(known) : null;
    }

    public Object get() {
        return this.asked.row(this.values);
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return this.rows == null ? new CustomTaskMetric[0] : this.rows.currentMetricsValues();
    }

    public void close() throws IOException {
        if (this.rows != null) {
            this.rows.close();
        }
    }
}

/** As many rows as a query needs. */
final class LimitReader implements PartitionReader {

    private final PartitionReader rows;
    private long left;

    LimitReader(PartitionReader rows, int limit) {
        this.rows = rows;
        this.left = limit;
    }

    public boolean next() throws IOException {
        return this.left > 0 && this.rows.next();
    }

    public Object get() {
        Object batch = this.rows.get();
        this.left -= ((ColumnarBatch) batch).numRows();
        return batch;
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return this.rows.currentMetricsValues();
    }

    public void close() throws IOException {
        this.rows.close();
    }
}
