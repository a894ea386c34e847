/* Files to read from: local ones, and those of Hadoop's file systems. */
package forelog.spark;

import java.io.Closeable;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.deploy.SparkHadoopUtil;

/** A file that is open to read. */
abstract class Input implements Closeable {

    static Input open(String path) throws IOException {
        return path.indexOf("://") < 0 ? (Input) new LocalInput(path) : new HadoopInput(path);
    }

    /** Whether files of such an address can be opened. */
    static boolean knows(String path) {
        int place = path.indexOf("://");
        if (place < 0) {
            return true;
        }
        try {
            FileSystem.getFileSystemClass(path.substring(0, place), configuration());
            return true;
        } catch (IOException unknown) {
            return false;
        }
    }

    static Configuration configuration() {
        return SparkHadoopUtil.get().conf();
    }

    abstract long size() throws IOException;

    /** Which file it is: the inode; 0 if that isn't known. */
    abstract long identity() throws IOException;

    /** Whether there is a file beside it. */
    abstract boolean has(String path) throws IOException;

    /** As many bytes as there are, but no more than these. */
    abstract int read(long place, byte[] buffer, int start, int count) throws IOException;
}

final class LocalInput extends Input {

    private final FileChannel channel;
    private final java.nio.file.Path path;

    LocalInput(String path) throws IOException {
        this.path = Paths.get(path, new String[0]);
        try {
            this.channel = FileChannel.open(this.path, new OpenOption[] {StandardOpenOption.READ});
        } catch (NoSuchFileException error) {
            throw new FileNotFoundException(path);
        }
    }

    long size() throws IOException {
        return this.channel.size();
    }

    /** Of the file that has the name now: it may be another one than the one that is open. */
    long identity() throws IOException {
        try {
            return ((Number) Files.getAttribute(this.path, "unix:ino", new java.nio.file.LinkOption[0])).longValue();
        } catch (NoSuchFileException gone) {
            return -1;
        }
    }

    boolean has(String other) {
        return Files.exists(Paths.get(other, new String[0]), new java.nio.file.LinkOption[0]);
    }

    int read(long place, byte[] buffer, int start, int count) throws IOException {
        int done = 0;
        while (done < count) {
            int more = this.channel.read(ByteBuffer.wrap(buffer, start + done, count - done), place + done);
            if (more < 0) {
                break;
            }
            done += more;
        }
        return done;
    }

    public void close() throws IOException {
        this.channel.close();
    }
}

final class HadoopInput extends Input {

    private final FileSystem files;
    private final FSDataInputStream stream;
    private final long size;

    HadoopInput(String path) throws IOException {
        Path place = new Path(path);
        this.files = place.getFileSystem(configuration());
        this.size = this.files.getFileStatus(place).getLen();
        this.stream = this.files.open(place);
    }

    long size() {
        return this.size;
    }

    long identity() {
        return 0;
    }

    boolean has(String other) throws IOException {
        return this.files.exists(new Path(other));
    }

    int read(long place, byte[] buffer, int start, int count) throws IOException {
        int done = 0;
        while (done < count) {
            int more = this.stream.read(place + done, buffer, start + done, count - done);
            if (more < 0) {
                break;
            }
            done += more;
        }
        return done;
    }

    public void close() throws IOException {
        this.stream.close();
    }
}
