/* A task as Python has planned it. */
package forelog.spark;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

import org.apache.spark.sql.connector.read.InputPartition;

import net.razorvine.pickle.IObjectConstructor;
import net.razorvine.pickle.Unpickler;

/**
 * Part of a log: what Python pickled for itself, and, if Java may read it, what Java has to know.
 *
 * The pickle is `forelog.spark.tasks.restored(plan, bytes)`. The plan is None, or a dictionary of numbers, texts,
 * bytes and lists of these.
 */
final class Slice implements InputPartition, IObjectConstructor {

    private static final String MODULE = "forelog.spark.tasks";

    final byte[] pickled;
    boolean plain;
    long byteCount;
    /** The values of aggregates, if all is known that this task was asked for. */
    Long[] known;
    String log;
    String folder;
    byte[] header;
    long[] numbers;
    long[] sizes;
    long[] identities;
    long[] starts;
    long[] stops;
    long since;
    long until;
    boolean ascends;
    int rows;

    static {
        Unpickler.registerConstructor(MODULE, "restored", new Slice(new byte[0]));
        Unpickler.registerConstructor(MODULE, "bundled", new Slice(new byte[0]));
    }

    private Slice(byte[] pickled) {
        this.pickled = pickled;
    }

    /** What stands for the call of the Python function: its arguments. */
    public Object construct(Object[] arguments) {
        return arguments;
    }

    /** A slice, or a bundle of slices. */
    static InputPartition partition(byte[] pickled) {
        Object[] arguments = arguments(pickled);
        if (!(arguments[0] instanceof List)) {
            return of(pickled, arguments);
        }
        List each = (List) arguments[0];
        Slice[] slices = new Slice[each.size()];
        for (int i = 0; i < slices.length; i++) {
            byte[] one = (byte[]) each.get(i);
            slices[i] = of(one, arguments(one));
        }
        return new Bundle(pickled, slices);
    }

    private static Object[] arguments(byte[] pickled) {
        try {
            return (Object[]) new Unpickler().loads(pickled);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static Slice of(byte[] pickled, Object[] arguments) {
        Slice slice = new Slice(pickled);
        Map plan = (Map) arguments[0];
        if (plan == null) {
            return slice;
        }
        slice.byteCount = ((Number) plan.get("bytes")).longValue();
        if (plan.get("known") != null) {
            List values = (List) plan.get("known");
            slice.known = new Long[values.size()];
            for (int i = 0; i < slice.known.length; i++) {
                Number value = (Number) values.get(i);
                slice.known[i] = value == null ? null : Long.valueOf(value.longValue());
            }
        }
        slice.folder = (String) plan.get("folder");
        if (slice.folder == null || !Input.knows(slice.folder)) {
            return slice;
        }
        slice.plain = true;
        slice.log = (String) plan.get("log");
        slice.header = (byte[]) plan.get("header");
        slice.numbers = longs(plan.get("numbers"));
        slice.sizes = longs(plan.get("sizes"));
        slice.identities = longs(plan.get("identities"));
        slice.starts = longs(plan.get("starts"));
        slice.stops = longs(plan.get("stops"));
        slice.since = ((Number) plan.get("since")).longValue();
        slice.until = ((Number) plan.get("until")).longValue();
        slice.rows = ((Number) plan.get("rows")).intValue();
        slice.ascends = ((Boolean) plan.get("ascends")).booleanValue();
        return slice;
    }

    /** Packed as big-endian numbers of 64 bits. */
    private static long[] longs(Object packed) {
        java.nio.LongBuffer found = java.nio.ByteBuffer.wrap((byte[]) packed).asLongBuffer();
        long[] values = new long[found.remaining()];
        found.get(values);
        return values;
    }

    /** The path of a segment, or of a file beside it. */
    String path(long number, String suffix) {
        String digits = Long.toString(number);
        StringBuilder path = new StringBuilder(this.folder).append('/');
        for (int i = digits.length(); i < 9; i++) {
            path.append('0');
        }
        return path.append(digits).append(suffix).toString();
    }

    /** The rest of it, from a position on, for Python: `forelog.spark.tasks.resumed(pickled, segment, offset)`. */
    byte[] resumed(long segment, long offset) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try {
            DataOutputStream out = new DataOutputStream(bytes);
            out.write(("\u0080\u0003c" + MODULE + "\nresumed\n(B").getBytes(StandardCharsets.ISO_8859_1));
            out.writeInt(Integer.reverseBytes(this.pickled.length));
            out.write(this.pickled);
            out.write(("L" + segment + "L\nL" + offset + "L\ntR.").getBytes(StandardCharsets.ISO_8859_1));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        return bytes.toByteArray();
    }
}

/** Small slices, which one task reads one after the other. */
final class Bundle implements InputPartition {

    final byte[] pickled;
    final Slice[] slices;

    Bundle(byte[] pickled, Slice[] slices) {
        this.pickled = pickled;
        this.slices = slices;
    }

    /** Whether Java may read any of them. */
    boolean plain() {
        for (int i = 0; i < this.slices.length; i++) {
            if (this.slices[i].plain) {
                return true;
            }
        }
        return false;
    }

    static long byteCount(InputPartition one) {
        if (one instanceof Slice) {
            return ((Slice) one).byteCount;
        }
        long sum = 0;
        Slice[] slices = ((Bundle) one).slices;
        for (int i = 0; i < slices.length; i++) {
            sum += slices[i].byteCount;
        }
        return sum;
    }
}
