/* Records of the captain format, decoded and checked. */
package forelog.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.Arrays;
import java.util.zip.CRC32C;

import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads whole, right records from files that are as they were when the slice was planned.
 *
 *   record   | 01 | seconds 8 | nanoseconds 4 | zone 2 | length, LEB128 | payload | CRC-32C 4 |
 *
 * At anything else (damage, a file that was rewritten or is gone, a record that is very large) it stops, and Python
 * reads the rest of the slice: so there is one place that knows what damage is, and what to do about it.
 *
 * It takes no lock, as Java has none of this kind. A cleaner replaces a file by another one: the one that is open
 * stays as it is. Whether it is the one that was planned, its size and its inode tell.
 */
final class CaptainReader implements PartitionReader {

    private static final int BUFFER = 1 << 19;
    private static final int RECORD_MAX = 1 << 26;
    private static final int TIME = 15;
    private static final int LEAST = TIME + 1 + 4;
    private static final int INDEX_HEAD = 32;
    private static final long EPOCH = 62135596800L;
    private static final long SECONDS_MAX = 9223372033L;
    private static final int ORIGIN = Platform.BYTE_ARRAY_OFFSET;

    private final Slice slice;
    private final PythonFunction python;
    private final Rows records;
    private final CRC32C sum = new CRC32C();
    private PythonReader rest;
    private ColumnarBatch batch;
    private int turn = -1;
    private Input file;
    private long stop;
    private byte[] buffer;
    private long base;
    private int at;
    private int filled;
    private boolean done;
    private boolean broken;
    private int count;
    private int payload;
    private int length;

    CaptainReader(Slice slice, StructType schema, PythonFunction python) {
        this.slice = slice;
        this.python = python;
        this.records = new Rows(schema, slice);
        this.buffer = new byte[0];
    }

    public boolean next() throws IOException {
        while (this.rest == null) {
            if (this.broken) {
                this.giveUp(this.base + this.at);
            } else if (this.file != null) {
                this.decode();
                if (this.count > 0) {
                    this.batch = this.records.batch(this.slice.numbers[this.turn], this.buffer, this.count);
                    return true;
                }
            } else if (this.done || ++this.turn >= this.slice.numbers.length) {
                return false;
            } else if (!this.open()) {
                this.giveUp(this.slice.starts[this.turn]);
            }
        }
        return this.rest.next();
    }

    public Object get() {
        return this.rest != null ? this.rest.get() : this.batch;
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return this.rest != null ? this.rest.currentMetricsValues() : new CustomTaskMetric[0];
    }

    public void close() throws IOException {
        if (this.file != null) {
            this.file.close();
            this.file = null;
        }
    }

    /** Python reads on, from a place in the segment. */
    private void giveUp(long place) throws IOException {
        this.close();
        this.rest = this.python.read(this.slice.resumed(this.slice.numbers[this.turn], place));
    }

    /** Open the next segment, if it is the file that was planned, and was never rewritten. */
    private boolean open() throws IOException {
        long number = this.slice.numbers[this.turn];
        long size = this.slice.sizes[this.turn];
        try {
            this.file = Input.open(this.slice.path(number, ".log"));
        } catch (FileNotFoundException gone) {
            return false;
        }
        String index = "." + size;
        if (this.file.size() < this.slice.stops[this.turn] || this.file.has(this.slice.path(number, index + ".map"))
                || this.isMap(this.slice.path(number, index + ".idx"))) {
            return false;
        }
        byte[] header = new byte[this.slice.header.length];
        int read = this.file.read(0, header, 0, header.length);
        if (read < header.length || !Arrays.equals(header, this.slice.header)) {
            return false;
        }
        if (this.file.identity() != this.slice.identities[this.turn]) {
            return false;  // asked last: until now nobody has put another one in its place, nor a map beside it
        }
        this.stop = this.slice.stops[this.turn];
        this.base = this.slice.starts[this.turn];
        this.at = 0;
        this.filled = 0;
        return true;
    }

    /** Whether an index is of a segment that was rewritten, as maps were named at first. */
    private boolean isMap(String path) throws IOException {
        byte[] head = new byte[INDEX_HEAD];
        Input index;
        try {
            index = Input.open(path);
        } catch (FileNotFoundException none) {
            return false;
        }
        try {
            if (index.read(0, head, 0, INDEX_HEAD) < INDEX_HEAD) {
                return false;
            }
        } finally {
            index.close();
        }
        java.nio.ByteBuffer numbers = java.nio.ByteBuffer.wrap(head);
        return numbers.getLong(INDEX_HEAD - 8) > numbers.getLong(INDEX_HEAD - 16);
    }

    /** Take records up to the end of the buffer, of the segment's part, or of a batch. */
    private void decode() throws IOException {
        this.count = 0;
        this.records.begin();
        boolean timed = this.slice.since != Long.MIN_VALUE || this.slice.until != Long.MAX_VALUE;
        while (this.count < this.slice.rows) {
            if (!timed) {
                this.run();
                if (this.count == this.slice.rows) {
                    return;
                }
            }
            long left = this.stop - this.base - this.at;
            if (left == 0) {
                this.close();
                return;
            }
            int need = this.parse(left);
            if (need == 0) {
                if (!this.take()) {
                    return;
                }
            } else if (need < 0 || need > left || need > RECORD_MAX) {
                this.broken = true;
                return;
            } else if (this.count > 0 || !this.fill(need, left)) {
                return;
            }
        }
    }

    /** Take a run of ordinary records, as fast as it goes: the next one that isn't ordinary is left for the others. */
    private void run() {
        byte[] bytes = this.buffer;
        int place = this.at;
        int rows = this.count;
        int end = (int) Math.min(this.filled, this.stop - this.base);
        CRC32C check = this.sum;
        while (rows < this.slice.rows && end - place >= LEAST + 1 && bytes[place] == 1) {
            int from = place + TIME + 1;
            int size = bytes[from - 1];
            if (size < 0) {
                int more = bytes[from++];
                if (more < 0) {
                    break;
                }
                size = size & 0x7f | more << 7;
            }
            int last = from + size;
            if (last + 4 > end) {
                break;
            }
            check.reset();
            check.update(bytes, place, last - place);
            long seconds = Long.reverseBytes(Platform.getLong(bytes, (long) ORIGIN + place + 1)) - EPOCH;
            if ((int) check.getValue() != Integer.reverseBytes(Platform.getInt(bytes, (long) ORIGIN + last))
                    || seconds < -SECONDS_MAX || seconds > SECONDS_MAX) {
                break;
            }
            int nanos = Integer.reverseBytes(Platform.getInt(bytes, (long) ORIGIN + place + 9));
            this.records.add(rows++, this.base + place, seconds * 1000000000L + nanos, from, size);
            place = last + 4;
        }
        this.at = place;
        this.count = rows;
    }

    /** Look at the next record: 0 if it is whole, -1 if it is none, or how many bytes it needs. */
    private int parse(long left) {
        int end = this.filled;
        if (end - this.at < LEAST) {
            return left < LEAST ? -1 : LEAST;
        }
        if (this.buffer[this.at] != 1) {
            return -1;
        }
        int place = this.at + TIME;
        long size = this.buffer[place++];
        if (size < 0) {
            size &= 0x7f;
            int shift = 7;
            while (true) {
                if (place >= end) {
                    return left > end - this.at ? (int) Math.min(end - this.at + 10, left) : -1;
                }
                byte more = this.buffer[place++];
                if (shift == 63 && (more < 0 || more > 1)) {
                    return -1;
                }
                size |= (more & 0x7fL) << shift;
                if (more >= 0) {
                    break;
                }
                shift += 7;
            }
        }
        if (size < 0 || size > RECORD_MAX) {
            return -1;
        }
        long need = place - this.at + size + 4;
        if (need > end - this.at) {
            return (int) Math.min(need, Integer.MAX_VALUE);
        }
        this.payload = place;
        this.length = (int) size;
        return 0;
    }

    /** Check the record that was looked at, and add it to the batch; whether there may be more. */
    private boolean take() throws IOException {
        int end = this.payload + this.length;
        this.sum.reset();
        this.sum.update(this.buffer, this.at, end - this.at);
        if ((int) this.sum.getValue() != Integer.reverseBytes(Platform.getInt(this.buffer, (long) ORIGIN + end))) {
            this.broken = true;
            return false;
        }
        long time = this.time();
        if (this.slice.until != Long.MAX_VALUE && time >= this.slice.until && this.slice.ascends) {
            this.done = true;
            this.close();
            return false;
        }
        if (time >= this.slice.since && (time < this.slice.until || this.slice.until == Long.MAX_VALUE)) {
            this.records.add(this.count++, this.base + this.at, time, this.payload, this.length);
        }
        this.at = end + 4;
        return true;
    }

    /** Nanoseconds since 1970; Long.MIN_VALUE or Long.MAX_VALUE for what 64 bits can't hold. */
    private long time() {
        long seconds = Long.reverseBytes(Platform.getLong(this.buffer, (long) ORIGIN + this.at + 1));
        if (seconds < Long.MIN_VALUE + EPOCH || seconds - EPOCH < -SECONDS_MAX) {
            return Long.MIN_VALUE;
        }
        if (seconds - EPOCH > SECONDS_MAX) {
            return Long.MAX_VALUE;
        }
        int nanos = Integer.reverseBytes(Platform.getInt(this.buffer, (long) ORIGIN + this.at + 9));
        return (seconds - EPOCH) * 1000000000L + nanos;
    }

    /** Have at least so many bytes from here on in the buffer. A batch may still hold what is in the old one. */
    private boolean fill(int need, long left) throws IOException {
        int kept = this.filled - this.at;
        int size = (int) Math.max(need, Math.min(BUFFER, left));
        byte[] target = this.records.hold() || this.buffer.length < size ? new byte[size] : this.buffer;
        System.arraycopy(this.buffer, this.at, target, 0, kept);
        this.buffer = target;
        this.base += this.at;
        this.at = 0;
        int want = (int) Math.min(target.length - kept, left - kept);
        this.filled = kept + this.file.read(this.base + kept, target, kept, want);
        if (this.filled - kept < want) {
            this.broken = true;  // the file has less than it said
            return false;
        }
        return true;
    }
}
