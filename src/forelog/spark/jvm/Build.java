/*
 * Compiles the source `forelog` with Spark's own compiler, and writes it to a jar:
 *
 *   java -cp 'JARS/*' org.codehaus.janino.SimpleCompiler Build.java Build FILE.java ... TARGET.jar
 *
 * PayloadViews.java is left out where this Spark has no class BinaryView.
 */
import java.io.File;
import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.jar.JarOutputStream;
import java.util.zip.ZipEntry;

import org.codehaus.commons.compiler.util.resource.FileResource;
import org.codehaus.commons.compiler.util.resource.MapResourceCreator;
import org.codehaus.commons.compiler.util.resource.Resource;
import org.codehaus.janino.ClassLoaderIClassLoader;
import org.codehaus.janino.Compiler;

public class Build {

    private static final String SOURCE = "forelog.spark.ForelogSource";

    public static void main(String[] words) throws Exception {
        final Map classes = new HashMap();
        List files = new ArrayList();
        for (int i = 0; i < words.length - 1; i++) {
            if (!words[i].endsWith("PayloadViews.java") || hasViews()) {
                files.add(new FileResource(new File(words[i])));
            }
        }
        Compiler compiler = new Compiler();
        compiler.setIClassLoader(new ClassLoaderIClassLoader(Build.class.getClassLoader()));
        compiler.setSourceCharset(StandardCharsets.UTF_8);
        compiler.setClassFileCreator(new MapResourceCreator(classes));
        compiler.setDebugLines(true);
        compiler.compile((Resource[]) files.toArray(new Resource[0]));
        check(classes);
        JarOutputStream jar = new JarOutputStream(new FileOutputStream(words[words.length - 1]));
        Iterator each = classes.entrySet().iterator();
        while (each.hasNext()) {
            Map.Entry one = (Map.Entry) each.next();
            jar.putNextEntry(new ZipEntry(((String) one.getKey()).replace('\\', '/')));
            jar.write((byte[]) one.getValue());
        }
        jar.putNextEntry(new ZipEntry("META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"));
        jar.write(SOURCE.getBytes());
        jar.close();
    }

    private static boolean hasViews() {
        try {
            Class.forName("org.apache.spark.unsafe.types.BinaryView");
            return true;
        } catch (ClassNotFoundException older) {
            return false;
        }
    }

    /** Load every class, and have the source look for what it asks of Spark by name. */
    private static void check(final Map classes) throws Exception {
        ClassLoader loader = new ClassLoader(Build.class.getClassLoader()) {
            protected Class findClass(String name) throws ClassNotFoundException {
                byte[] code = (byte[]) classes.get(name.replace('.', '/') + ".class");
                if (code == null) {
                    throw new ClassNotFoundException(name);
                }
                return this.defineClass(name, code, 0, code.length);
            }
        };
        Iterator each = classes.keySet().iterator();
        while (each.hasNext()) {
            String name = (String) each.next();
            Class.forName(name.substring(0, name.length() - 6).replace('/', '.'), true, loader);
        }
        loader.loadClass(SOURCE).getMethod("check", new Class[0]).invoke(null, new Object[0]);
    }
}
