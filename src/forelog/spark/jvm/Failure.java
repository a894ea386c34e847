/* Errors of Python, in one line. */
package forelog.spark;

import java.lang.reflect.Constructor;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.spark.QueryContext;
import org.apache.spark.api.python.PythonException;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.unsafe.Platform;

import scala.Option;

/** An error of forelog says in its message what to do: users need no traceback of it. Others stay as they are. */
final class Failure {

    private static final Pattern LINE =
        Pattern.compile("^\\s*(?:\\[\\w+\\][^\\n]*?)?(forelog(?:\\.\\w+)*\\.[A-Z]\\w+: .+?)\\s*$", Pattern.MULTILINE);

    private Failure() {}

    /** The last line that names an error of forelog; null if there is none. */
    static String line(Throwable error) {
        if (error.getMessage() == null) {
            return null;
        }
        Matcher found = LINE.matcher(error.getMessage());
        String line = null;
        while (found.find()) {
            line = found.group(1);
        }
        return line;
    }

    /** Throw an error of a query that is planned. */
    static void plan(Throwable error) {
        String line = line(error);
        if (line != null) {
            Option none = Option.empty();
            error = new AnalysisException(line, none, none, none, none, noParameters(), new QueryContext[0]);
        }
        Platform.throwException(error);
    }

    /** Throw an error of a task. */
    static void read(Throwable error) {
        String line = error instanceof PythonException ? line(error) : null;
        if (line != null) {
            PythonException known = (PythonException) error;
            Option condition = Option.apply(known.getErrorClass());
            Constructor[] all = PythonException.class.getConstructors();
            for (int i = 0; i < all.length; i++) {
                Class[] kinds = all[i].getParameterTypes();
                if (kinds.length == 5 && kinds[1].equals(Throwable.class)) {
                    Object[] values = {line, null, condition, noParameters(), new QueryContext[0]};
                    try {
                        error = (Throwable) all[i].newInstance(values);
                    } catch (ReflectiveOperationException other) {
                        break;  // in this Spark the error keeps its traceback
                    }
                }
            }
        }
        Platform.throwException(error);
    }

    private static scala.collection.immutable.Map noParameters() {
        return (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.empty();
    }
}
