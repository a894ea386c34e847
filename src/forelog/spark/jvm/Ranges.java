/* Which positions, times and logs the filters of a query leave. */
package forelog.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;

import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;

/**
 * For `segment`, `offset` and `time` the least and the greatest value that can pass, both included; for `log` the
 * values themselves. A filter that says nothing of a column leaves all of it. Spark applies every filter again, to
 * every row: so it does no harm to leave too much.
 */
final class Ranges {

    private static final String[] NUMBERS = {"segment", "offset", "time"};
    private static final long[] ALL = {Long.MIN_VALUE, Long.MAX_VALUE};
    private static final long[] NONE = {Long.MAX_VALUE, Long.MIN_VALUE};
    private static final int LOGS_MAX = 10000;

    private Ranges() {}

    /** As JSON: `{"segment": [1, 7], "log": ["orders"]}`, without what has no bounds. Times are microseconds. */
    static String of(Predicate[] filters) {
        Map found = new HashMap();
        for (int i = 0; i < NUMBERS.length; i++) {
            long[] range = ALL;
            for (int j = 0; j < filters.length; j++) {
                range = both(range, range(filters[j], NUMBERS[i]));
            }
            if (range[0] != Long.MIN_VALUE || range[1] != Long.MAX_VALUE) {
                List ends = new ArrayList();
                ends.add(range[0] == Long.MIN_VALUE ? null : Long.valueOf(range[0]));
                ends.add(range[1] == Long.MAX_VALUE ? null : Long.valueOf(range[1]));
                found.put(NUMBERS[i], range[0] > range[1] ? new ArrayList() : ends);
            }
        }
        TreeSet logs = null;
        for (int j = 0; j < filters.length; j++) {
            logs = common(logs, logs(filters[j]));
        }
        if (logs != null && logs.size() <= LOGS_MAX) {
            found.put("log", logs);
        }
        try {
            return new ObjectMapper().writeValueAsString(found);
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }

    private static long[] both(long[] a, long[] b) {
        return new long[] {Math.max(a[0], b[0]), Math.min(a[1], b[1])};
    }

    private static long[] either(long[] a, long[] b) {
        if (a[0] > a[1]) {
            return b;
        }
        return b[0] > b[1] ? a : new long[] {Math.min(a[0], b[0]), Math.max(a[1], b[1])};
    }

    private static long[] range(Expression filter, String column) {
        Expression[] parts = filter.children();
        String kind = filter instanceof Predicate ? ((Predicate) filter).name() : "";
        if (kind.equals("AND")) {
            return both(range(parts[0], column), range(parts[1], column));
        }
        if (kind.equals("OR")) {
            return either(range(parts[0], column), range(parts[1], column));
        }
        if (kind.equals("ALWAYS_FALSE")) {
            return NONE;
        }
        if (parts.length < 2 || !isColumn(parts[0], column)) {
            return ALL;
        }
        if (kind.equals("IN")) {
            long[] range = NONE;
            for (int i = 1; i < parts.length; i++) {
                Object value = value(parts[i]);
                if (!(parts[i] instanceof Literal) || !(value == null || isWhole(value))) {
                    return ALL;
                }
                range = value == null ? range : either(range, only(((Number) value).longValue()));
            }
            return range;
        }
        Object value = value(parts[1]);
        return isWhole(value) ? compared(kind, ((Number) value).longValue()) : ALL;
    }

    private static long[] compared(String kind, long value) {
        if (kind.equals("=") || kind.equals("<=>")) {
            return only(value);
        }
        if (kind.equals(">") && value == Long.MAX_VALUE || kind.equals("<") && value == Long.MIN_VALUE) {
            return NONE;
        }
        if (kind.equals(">") || kind.equals(">=")) {
            return new long[] {kind.equals(">") ? value + 1 : value, Long.MAX_VALUE};
        }
        if (kind.equals("<") || kind.equals("<=")) {
            return new long[] {Long.MIN_VALUE, kind.equals("<") ? value - 1 : value};
        }
        return ALL;
    }

    private static long[] only(long value) {
        return new long[] {value, value};
    }

    /** The logs that can pass; null for all. */
    private static TreeSet logs(Expression filter) {
        Expression[] parts = filter.children();
        String kind = filter instanceof Predicate ? ((Predicate) filter).name() : "";
        if (kind.equals("AND")) {
            return common(logs(parts[0]), logs(parts[1]));
        }
        if (kind.equals("OR")) {
            TreeSet left = logs(parts[0]);
            TreeSet right = logs(parts[1]);
            if (left != null && right != null) {
                left.addAll(right);
            }
            return right == null ? null : left;
        }
        boolean equal = kind.equals("=") || kind.equals("<=>") || kind.equals("IN");
        if (!equal || parts.length < 2 || !isColumn(parts[0], "log")) {
            return null;
        }
        TreeSet found = new TreeSet();
        for (int i = 1; i < parts.length; i++) {
            if (!(parts[i] instanceof Literal)) {
                return null;
            }
            if (value(parts[i]) != null) {
                found.add(value(parts[i]).toString());
            }
        }
        return found;
    }

    private static TreeSet common(TreeSet a, TreeSet b) {
        if (a == null || b == null) {
            return a == null ? b : a;
        }
        TreeSet both = new TreeSet(a);
        both.retainAll(b);
        return both;
    }

    private static boolean isColumn(Expression one, String name) {
        if (!(one instanceof NamedReference)) {
            return false;
        }
        String[] path = ((NamedReference) one).fieldNames();
        return path.length == 1 && path[0].equals(name);
    }

    private static Object value(Expression one) {
        return one instanceof Literal ? ((Literal) one).value() : null;
    }

    private static boolean isWhole(Object value) {
        return value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte;
    }
}
