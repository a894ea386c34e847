/* Payloads that are not copied. Left out where Spark has no class BinaryView. */
package forelog.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.BinaryView;

final class PayloadViews extends Payloads {

    PayloadViews(DataType type, byte[] buffer, int[] starts, int[] lengths) {
        super(type, buffer, starts, lengths);
    }

    public BinaryView getBinaryView(int row) {
        return BinaryView.fromBytes(this.buffer, this.starts[row], this.lengths[row]);
    }
}
