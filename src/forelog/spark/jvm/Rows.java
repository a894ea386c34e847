/* The records of one batch, as the columns that a query needs. */
package forelog.spark;

import java.lang.reflect.Constructor;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/** A query may hold a batch while it takes the next one, so each has arrays of its own. */
final class Rows {

    private static final long NONE = Long.MIN_VALUE;
    private static final Constructor PAYLOADS = payloads();

    private final StructField[] fields;
    private final UTF8String log;
    private final int most;
    private boolean needsOffsets;
    private boolean needsMicros;
    private boolean needsTimes;
    private boolean needsPayloads;
    private boolean needsLengths;
    private long[] offsets;
    private long[] micros;
    private long[] times;
    private int[] starts;
    private int[] lengths;
    private boolean nulls;

    Rows(StructType schema, Slice slice) {
        this.fields = schema.fields();
        this.log = UTF8String.fromString(slice.log);
        this.most = slice.rows;
        for (int i = 0; i < this.fields.length; i++) {
            String name = this.fields[i].name();
            this.needsOffsets |= name.equals("offset");
            this.needsMicros |= name.equals("time");
            this.needsTimes |= name.equals("time_ns");
            this.needsPayloads |= name.equals("payload");
            this.needsLengths |= name.equals("length") || name.equals("payload");
        }
    }

    private static Constructor payloads() {
        Class[] parts = {DataType.class, byte[].class, int[].class, int[].class};
        try {
            return Class.forName("forelog.spark.PayloadViews").getDeclaredConstructor(parts);
        } catch (ReflectiveOperationException older) {
            return null;
        }
    }

    /** Whether batches hold the buffer that their payloads are in. */
    boolean hold() {
        return this.needsPayloads;
    }

    void begin() {
        this.offsets = this.needsOffsets ? new long[this.most] : null;
        this.micros = this.needsMicros ? new long[this.most] : null;
        this.times = this.needsTimes ? new long[this.most] : null;
        this.starts = this.needsPayloads ? new int[this.most] : null;
        this.lengths = this.needsLengths ? new int[this.most] : null;
        this.nulls = false;
    }

    void add(int row, long offset, long time, int start, int length) {
        boolean known = time != Long.MIN_VALUE && time != Long.MAX_VALUE;
        this.nulls |= !known;
        if (this.needsOffsets) {
            this.offsets[row] = offset;
        }
        if (this.needsMicros) {
            this.micros[row] = known ? time / 1000 : NONE;
        }
        if (this.needsTimes) {
            this.times[row] = known ? time : NONE;
        }
        if (this.needsLengths) {
            this.lengths[row] = length;
        }
        if (this.needsPayloads) {
            this.starts[row] = start;
        }
    }

    ColumnarBatch batch(long segment, byte[] buffer, int count) {
        ColumnVector[] columns = new ColumnVector[this.fields.length];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = this.column(this.fields[i].name(), this.fields[i].dataType(), segment, buffer, count);
        }
        return new ColumnarBatch(columns, count);
    }

    private ColumnVector column(String name, DataType type, long segment, byte[] buffer, int count) {
        if (name.equals("offset")) {
            return new Longs(type, this.offsets, count, false);
        }
        if (name.equals("time")) {
            return new Longs(type, this.micros, count, this.nulls);
        }
        if (name.equals("time_ns")) {
            return new Longs(type, this.times, count, this.nulls);
        }
        if (name.equals("length")) {
            return new Lengths(type, this.lengths);
        }
        if (name.equals("payload")) {
            return this.payload(type, buffer);
        }
        if (name.equals("segment") || name.equals("log")) {
            return new Same(type, segment, this.log);
        }
        throw new IllegalArgumentException("there is no column " + name);
    }

    private ColumnVector payload(DataType type, byte[] buffer) {
        if (PAYLOADS == null) {
            return new Payloads(type, buffer, this.starts, this.lengths);
        }
        try {
            return (ColumnVector) PAYLOADS.newInstance(new Object[] {type, buffer, this.starts, this.lengths});
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }
}
