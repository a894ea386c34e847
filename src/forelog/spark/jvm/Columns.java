/* Columns of a batch. */
package forelog.spark;

import java.util.Arrays;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column without nulls that has no values of any type: what the others have in common. */
abstract class Column extends ColumnVector {

    Column(DataType type) {
        super(type);
    }

    public void close() {}

    public boolean hasNull() {
        return false;
    }

    public int numNulls() {
        return 0;
    }

    public boolean isNullAt(int row) {
        return false;
    }

    public boolean getBoolean(int row) {
        throw this.other();
    }

    public byte getByte(int row) {
        throw this.other();
    }

    public short getShort(int row) {
        throw this.other();
    }

    public int getInt(int row) {
        throw this.other();
    }

    public long getLong(int row) {
        throw this.other();
    }

    public float getFloat(int row) {
        throw this.other();
    }

    public double getDouble(int row) {
        throw this.other();
    }

    public ColumnarArray getArray(int row) {
        throw this.other();
    }

    public ColumnarMap getMap(int row) {
        throw this.other();
    }

    public Decimal getDecimal(int row, int precision, int scale) {
        throw this.other();
    }

    public UTF8String getUTF8String(int row) {
        throw this.other();
    }

    public byte[] getBinary(int row) {
        throw this.other();
    }

    public ColumnVector getChild(int place) {
        throw this.other();
    }

    private UnsupportedOperationException other() {
        return new UnsupportedOperationException("this is a column of " + this.dataType());
    }
}

/** The same value in each row: a number, or a text. */
final class Same extends Column {

    private final long number;
    private final UTF8String text;

    Same(DataType type, long number, UTF8String text) {
        super(type);
        this.number = number;
        this.text = text;
    }

    public int getInt(int row) {
        return (int) this.number;
    }

    public long getLong(int row) {
        return this.number;
    }

    public UTF8String getUTF8String(int row) {
        return this.text;
    }
}

/** Numbers, of which one value may stand for null. */
class Longs extends Column {

    private final long[] values;
    private final int rows;
    private final boolean nulls;

    /** With `nulls`, Long.MIN_VALUE is null. */
    Longs(DataType type, long[] values, int rows, boolean nulls) {
        super(type);
        this.values = values;
        this.rows = rows;
        this.nulls = nulls;
    }

    public long getLong(int row) {
        return this.values[row];
    }

    public boolean hasNull() {
        return this.nulls;
    }

    public boolean isNullAt(int row) {
        return this.nulls && this.values[row] == Long.MIN_VALUE;
    }

    public int numNulls() {
        int count = 0;
        for (int row = 0; row < this.rows; row++) {
            count += this.isNullAt(row) ? 1 : 0;
        }
        return count;
    }
}

/** The lengths of payloads. */
final class Lengths extends Column {

    private final int[] lengths;

    Lengths(DataType type, int[] lengths) {
        super(type);
        this.lengths = lengths;
    }

    public long getLong(int row) {
        return this.lengths[row];
    }
}

/** Payloads, where they were read to. */
class Payloads extends Column {

    final byte[] buffer;
    final int[] starts;
    final int[] lengths;

    Payloads(DataType type, byte[] buffer, int[] starts, int[] lengths) {
        super(type);
        this.buffer = buffer;
        this.starts = starts;
        this.lengths = lengths;
    }

    public byte[] getBinary(int row) {
        return Arrays.copyOfRange(this.buffer, this.starts[row], this.starts[row] + this.lengths[row]);
    }
}
