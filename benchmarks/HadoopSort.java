import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.Reducer;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;

/** Sorts lines by their bytes with Hadoop MapReduce's local job runner: HadoopSort INPUT OUTPUT_FOLDER. */
public class HadoopSort {
  public static class Lines extends Mapper<LongWritable, Text, Text, NullWritable> {
    @Override
    protected void map(LongWritable offset, Text line, Context context)
        throws IOException, InterruptedException {
      context.write(line, NullWritable.get());
    }
  }

  public static class Repeat extends Reducer<Text, NullWritable, Text, NullWritable> {
    @Override
    protected void reduce(Text line, Iterable<NullWritable> times, Context context)
        throws IOException, InterruptedException {
      for (NullWritable time : times) {
        context.write(line, time);
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    Configuration settings = new Configuration();
    settings.set("mapreduce.framework.name", "local");
    settings.set("fs.defaultFS", "file:///");
    settings.set("hadoop.tmp.dir", arguments[2]);
    settings.setInt("mapreduce.local.map.tasks.maximum", 2);
    settings.setInt("mapreduce.local.reduce.tasks.maximum", 2);
    // One spill per map: 64 MB of input in a buffer of 256 MB.
    settings.setInt("mapreduce.task.io.sort.mb", 256);
    settings.setInt("mapreduce.task.io.sort.factor", 100);
    settings.setLong("mapreduce.input.fileinputformat.split.maxsize", 64L << 20);
    // The local file system writes a .crc file beside each file; checksums stay on, as Hadoop ships.
    Job job = Job.getInstance(settings, "sort");
    job.setJarByClass(HadoopSort.class);
    job.setMapperClass(Lines.class);
    job.setReducerClass(Repeat.class);
    // Keys are printable ASCII: the first byte alone cuts them into two even ranges.
    job.setPartitionerClass(Halves.class);
    job.setNumReduceTasks(2);
    job.setOutputKeyClass(Text.class);
    job.setOutputValueClass(NullWritable.class);
    FileInputFormat.addInputPath(job, new Path(arguments[0]));
    FileOutputFormat.setOutputPath(job, new Path(arguments[1]));
    System.exit(job.waitForCompletion(false) ? 0 : 1);
  }

  /** Range partitioning without a sampling pass, which would only cost Hadoop time. */
  public static class Halves extends org.apache.hadoop.mapreduce.Partitioner<Text, NullWritable> {
    @Override
    public int getPartition(Text line, NullWritable none, int partitions) {
      return line.getLength() > 0 && line.getBytes()[0] >= 'P' ? 1 : 0;
    }
  }
}
