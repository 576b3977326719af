package io.penstock.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;

/**
 * Delta's log on S3, for any number of writers: a version is put with `If-None-Match`, so that it appears only where
 * none is. Delta's own log store for S3 looks first and then puts, which is safe for one driver alone.
 */
public class ConditionalLogStore extends HadoopFileSystemLogStore {
  private static final String ONLY_IF_ABSENT = "fs.option.create.conditional.overwrite";

  public ConditionalLogStore(Configuration hadoopConf) {
    super(hadoopConf);
  }

  @Override
  @SuppressWarnings("rawtypes")
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
      throws IOException {
    // All of it first: a stream that is closed after a failure would show half a version.
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      lines.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    FileSystem fs = path.getFileSystem(hadoopConf);
    FSDataOutputStreamBuilder builder = fs.createFile(path);
    builder.recursive();
    builder.overwrite(overwrite);
    if (!overwrite) {
      builder.must(ONLY_IF_ABSENT, true);
    }
    try {
      FSDataOutputStream out = (FSDataOutputStream) builder.build();
      try {
        lines.writeTo(out);
      } catch (IOException | RuntimeException failure) {
        out.abort();
        throw failure;
      }
      out.close();
    } catch (RemoteFileChangedException taken) {
      throw new FileAlreadyExistsException(path.toString());
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
    return false;
  }
}
