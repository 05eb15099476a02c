package lockgate;

import java.io.IOException;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.BlockRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.BlockManager;
import org.apache.spark.storage.StorageLevel;
import org.apache.spark.storage.StreamBlockId;
import org.apache.spark.util.CollectionAccumulator;
import org.apache.spark.util.TaskCompletionListener;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * Puts rows that cannot be used aside, from the tasks that meet them: on the disk of the executor, in blocks that Spark
 * manages. A task holds a few megabytes of them, and the driver only the names of the blocks. See aside.py.
 */
public class Aside implements UDF2 {
    /** A task holds at most this much before it writes to its disk. */
    static final int BLOCK_BYTES = 4 * 1024 * 1024;

    static final HashMap TRAYS = new HashMap(); // of the tasks of this process, by attempt
    static final ClassTag ROW = ClassTag$.MODULE$.apply(Row.class);

    private CollectionAccumulator blocks;

    /** On the driver, before anything else. */
    public void begin(SparkContext context) {
        blocks = context.collectionAccumulator();
    }

    /** A condition that puts a row aside and does not hold. Spark may neither move it nor evaluate it twice. */
    public Column put(Column facts, Column whole) {
        UserDefinedFunction function = functions.udf((UDF2) this, DataTypes.BooleanType).asNondeterministic();
        return function.apply(new Column[] {facts, whole});
    }

    public Object call(Object facts, Object whole) throws Exception {
        trayOf(TaskContext.get(), blocks).add((byte[]) facts, (byte[]) whole);
        return Boolean.FALSE;
    }

    /** The blocks of all tasks that succeeded, one in each line: its writer, its name, its rows and bytes. */
    public String told() {
        StringBuilder lines = new StringBuilder();
        Iterator each = ((List) blocks.value()).iterator();
        while (each.hasNext()) {
            lines.append((String) each.next()).append('\n');
        }
        return lines.toString();
    }

    public void forget() {
        blocks.reset();
    }

    /** The rows of these blocks, one partition for each. */
    public Object read(SparkSession spark, String names) {
        StructType columns = new StructType().add("facts", DataTypes.BinaryType).add("whole", DataTypes.BinaryType);
        RDD rows = new BlockRDD(spark.sparkContext(), idsOf(names), ROW);
        return spark.createDataFrame(rows, columns);
    }

    public void remove(String names) {
        BlockId[] ids = idsOf(names);
        for (int index = 0; index < ids.length; index++) {
            manager().master().removeBlock(ids[index]);
        }
    }

    private static BlockId[] idsOf(String names) {
        String[] each = names.split(" ");
        BlockId[] ids = new BlockId[each.length];
        for (int index = 0; index < each.length; index++) {
            ids[index] = BlockId.apply(each[index]);
        }
        return ids;
    }

    /**
     * The manager of this process. We look up this one method of SparkEnv by its name. The compiler would list all its
     * methods, and for that Java needs a library that PySpark does not bring.
     */
    static BlockManager manager() {
        try {
            MethodHandles.Lookup lookup = MethodHandles.publicLookup();
            MethodType none = MethodType.methodType(SparkEnv.class);
            Object env = lookup.findStatic(SparkEnv.class, "get", none).invokeWithArguments(new Object[0]);
            MethodType given = MethodType.methodType(BlockManager.class);
            MethodHandle handle = lookup.findVirtual(SparkEnv.class, "blockManager", given);
            return (BlockManager) handle.invokeWithArguments(new Object[] {env});
        } catch (Throwable error) {
            throw new IllegalStateException(error);
        }
    }

    private static Tray trayOf(TaskContext task, CollectionAccumulator blocks) {
        synchronized (TRAYS) {
            Long attempt = Long.valueOf(task.taskAttemptId());
            Tray tray = (Tray) TRAYS.get(attempt);
            if (tray == null) {
                tray = new Tray(task, blocks);
                TRAYS.put(attempt, tray);
                task.addTaskCompletionListener(tray);
            }
            return tray;
        }
    }

    /** What one attempt of a task has put aside, for all its steps. */
    static class Tray implements TaskCompletionListener {
        private final long attempt;
        private final String writer;
        private final CollectionAccumulator blocks;
        private final List ids = new ArrayList();
        private List rows = new ArrayList();
        private long bytes = 0;

        Tray(TaskContext task, CollectionAccumulator blocks) {
            this.attempt = task.taskAttemptId();
            this.writer = task.stageId() + " " + task.partitionId() + " " + task.stageAttemptNumber() + " " + attempt;
            this.blocks = blocks;
        }

        synchronized void add(byte[] facts, byte[] whole) throws IOException {
            rows.add(RowFactory.create(new Object[] {facts, whole}));
            bytes += facts.length + (whole == null ? 0 : whole.length);
            if (bytes >= BLOCK_BYTES) {
                write();
            }
        }

        private void write() throws IOException {
            BlockId id = new StreamBlockId(ids.size(), attempt);
            scala.collection.Iterator each = CollectionConverters.asScala(rows.iterator());
            if (!manager().putIterator(id, each, StorageLevel.DISK_ONLY(), true, ROW)) {
                throw new IOException("rows that were put aside cannot be kept on this machine's disk: " + id.name());
            }
            ids.add(id);
            blocks.add(writer + " " + id.name() + " " + rows.size() + " " + bytes);
            rows = new ArrayList();
            bytes = 0;
        }

        public void onTaskCompletion(TaskContext task) {
            synchronized (TRAYS) {
                TRAYS.remove(Long.valueOf(attempt));
            }
            try {
                finish(!task.isFailed() && !task.isInterrupted());
            } catch (IOException error) {
                throw new RuntimeException(error);
            }
        }

        /** The driver receives no block of an attempt that failed. */
        private synchronized void finish(boolean isGood) throws IOException {
            if (isGood && !rows.isEmpty()) {
                write();
            }
            for (int index = 0; index < ids.size() && !isGood; index++) {
                manager().removeBlock((BlockId) ids.get(index), true);
            }
        }
    }
}
