package lockgate;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Files of this machine with checksums, as org.apache.hadoop.fs.local.LocalFs, which cannot be extended. Java itself sets
 * permissions and looks for links, where Hadoop starts a process (chmod, readlink) each time.
 */
public class LocalFiles extends ChecksumFs {
    public LocalFiles(URI uri, Configuration settings) throws IOException, URISyntaxException {
        super(new Plain(settings));
    }

    /** The same without checksums, as org.apache.hadoop.fs.local.RawLocalFs. */
    static class Plain extends DelegateToFileSystem {
        Plain(Configuration settings) throws IOException, URISyntaxException {
            super(FsConstants.LOCAL_FS_URI, new Processless(), settings, FsConstants.LOCAL_FS_URI.getScheme(), false);
        }

        public int getUriDefaultPort() {
            return -1;
        }

        public FsServerDefaults getServerDefaults(Path path) throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        public FsServerDefaults getServerDefaults() throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        public boolean isValidName(String name) {
            return true;
        }
    }

    static class Processless extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) throws IOException {
            int mode = permission.toShort() & 07777;
            Files.setAttribute(pathToFile(path).toPath(), "unix:mode", Integer.valueOf(mode));
        }

        public FileStatus getFileLinkStatus(Path path) throws IOException {
            boolean isLink = Files.isSymbolicLink(pathToFile(path).toPath());
            return isLink ? super.getFileLinkStatus(path) : getFileStatus(path);
        }
    }
}
