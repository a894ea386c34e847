/* A stream, whose batches Java reads as it reads a table. */
package forelog.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Optional;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingPartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;

/** Python has the offsets, and plans each batch. */
final class ForelogStream implements SupportsTriggerAvailableNow, MicroBatchStream, ReportsSourceMetrics {

    private final MicroBatchStream python;
    private final StructType schema;
    private final String name;
    private String latest;

    ForelogStream(MicroBatchStream python, StructType schema, String name) {
        this.python = python;
        this.schema = schema;
        this.name = name;
    }

    public Offset initialOffset() {
        try {
            return this.python.initialOffset();
        } catch (Throwable error) {
            Failure.plan(error);
            return null;
        }
    }

    public Offset latestOffset() {
        return this.python.latestOffset();
    }

    public Offset latestOffset(Offset start, ReadLimit limit) {
        try {
            return ((SupportsAdmissionControl) this.python).latestOffset(start, limit);
        } catch (Throwable error) {
            Failure.plan(error);
            return null;
        }
    }

    public ReadLimit getDefaultReadLimit() {
        return ((SupportsAdmissionControl) this.python).getDefaultReadLimit();
    }

    public Offset reportLatestOffset() {
        Offset found = ((SupportsAdmissionControl) this.python).reportLatestOffset();
        this.latest = found == null ? null : found.json();
        return found;
    }

    public void prepareForTriggerAvailableNow() {
        ((SupportsTriggerAvailableNow) this.python).prepareForTriggerAvailableNow();
    }

    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        InputPartition[] planned;
        try {
            planned = this.python.planInputPartitions(start, end);
        } catch (Throwable error) {
            Failure.plan(error);
            return null;
        }
        InputPartition[] tasks = new InputPartition[planned.length];
        for (int i = 0; i < planned.length; i++) {
            tasks[i] = Slice.partition(((PythonStreamingInputPartition) planned[i]).pickedPartition());
        }
        return tasks;
    }

    public PartitionReaderFactory createReaderFactory() {
        PartitionReaderFactory rows = this.python.createReaderFactory();
        return new Readers(new PythonFunction((PythonStreamingPartitionReaderFactory) rows), this.schema, null, 0);
    }

    /** How far the stream is behind: bytes and seconds of all logs, and of each that is behind, up to a number. */
    public Map metrics(Optional consumed) {
        Map found = new HashMap();
        if (this.latest == null) {
            return found;
        }
        try {
            Iterator logs = ((Map) new ObjectMapper().readValue(this.latest, Map.class)).entrySet().iterator();
            long bytes = 0;
            double seconds = 0;
            int behind = 0;
            while (logs.hasNext()) {
                Map.Entry log = (Map.Entry) logs.next();
                Lag lag = Lag.of((String) log.getValue());
                if (lag.bytes > 0) {
                    behind++;
                    bytes += lag.bytes;
                    seconds = Math.max(seconds, lag.seconds);
                    if (behind <= Lag.LOGS_MAX) {
                        found.put("lagBytes." + log.getKey(), Long.toString(lag.bytes));
                        found.put("lagSeconds." + log.getKey(), Double.toString(lag.seconds));
                    }
                }
            }
            found.put("lagBytes", Long.toString(bytes));
            found.put("lagSeconds", Double.toString(seconds));
            found.put("logsBehind", Integer.toString(behind));
        } catch (JsonProcessingException other) {
            return found;
        }
        return found;
    }

    public Offset deserializeOffset(String json) {
        return this.python.deserializeOffset(json);
    }

    public void commit(Offset end) {
        this.python.commit(end);
    }

    public void stop() {
        this.python.stop();
    }

    /** What a progress report calls the source. */
    public String toString() {
        return this.name;
    }
}

/** As Python writes it after a position: `000000007:1048576 behind 2048 bytes 1.5 s`. */
final class Lag {

    static final int LOGS_MAX = 100;

    final long bytes;
    final double seconds;

    private Lag(long bytes, double seconds) {
        this.bytes = bytes;
        this.seconds = seconds;
    }

    static Lag of(String text) {
        String[] words = text.split(" ");
        for (int i = 0; i + 4 < words.length; i++) {
            if (words[i].equals("behind")) {
                return new Lag(Long.parseLong(words[i + 1]), Double.parseDouble(words[i + 3]));
            }
        }
        return new Lag(0, 0);
    }
}
