/*
 * Compiles ForelogSource.java with Spark's own compiler, and writes it to a jar:
 *
 *   java -cp 'JARS/*' org.codehaus.janino.SimpleCompiler Build.java Build ForelogSource.java TARGET.jar
 */
import java.io.FileOutputStream;
import java.io.FileReader;
import java.util.Iterator;
import java.util.Map;
import java.util.jar.JarOutputStream;
import java.util.zip.ZipEntry;

import org.codehaus.janino.SimpleCompiler;

public class Build {

    private static final String SOURCE = "forelog.spark.ForelogSource";

    public static void main(String[] words) throws Exception {
        SimpleCompiler compiler = new SimpleCompiler();
        compiler.cook(words[0], new FileReader(words[0]));
        Class source = compiler.getClassLoader().loadClass(SOURCE);
        source.getMethod("check", new Class[0]).invoke(null, new Object[0]);
        JarOutputStream jar = new JarOutputStream(new FileOutputStream(words[1]));
        Iterator each = compiler.getBytecodes().entrySet().iterator();
        while (each.hasNext()) {
            Map.Entry one = (Map.Entry) each.next();
            jar.putNextEntry(new ZipEntry(((String) one.getKey()).replace('.', '/') + ".class"));
            jar.write((byte[]) one.getValue());
        }
        jar.putNextEntry(new ZipEntry("META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"));
        jar.write(SOURCE.getBytes());
        jar.close();
    }
}
