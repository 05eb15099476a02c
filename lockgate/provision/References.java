package lockgate;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.URLDecoder;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.config.ConfigData;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.config.provider.ConfigProvider;

/**
 * Resolves the references of a job in the settings of Kafka's client, as lockgate/secrets.py does it in Python: when a
 * client is constructed, on the machine that connects. A value is not kept, and no message holds one.
 *
 * <p>The path says how a value is written: text, or quoted for a login. The key is the reference, and for a hook the
 * name of the login behind a question mark. A hook is a function in Python, so it is asked in a process of its own.
 */
public class References implements ConfigProvider {
    static final int BYTES_MAX = 64 * 1024;

    private Map settings = Collections.EMPTY_MAP;

    public void configure(Map settings) {
        this.settings = settings;
    }

    public ConfigData get(String path) {
        throw new ConfigException("a reference has a key");
    }

    public ConfigData get(String path, Set keys) {
        Map found = new HashMap();
        for (Iterator each = keys.iterator(); each.hasNext();) {
            String key = (String) each.next();
            int end = key.indexOf('?');
            String reference = decode(end < 0 ? key : key.substring(0, end));
            String value = resolve(reference, end < 0 ? "" : decode(key.substring(end + 1)));
            found.put(key, "quoted".equals(path) ? quote(value) : value);
        }
        return new ConfigData(found);
    }

    public void close() {
    }

    private String resolve(String reference, String login) {
        String value;
        if (reference.startsWith("env:")) {
            value = System.getenv(reference.substring(4));
            if (value == null || value.isEmpty()) {
                throw unresolved(reference, "the environment variable is not set, or is empty");
            }
        } else if (reference.startsWith("file:")) {
            value = read(reference);
        } else {
            value = ask(reference, login);
        }
        if (value.indexOf('\0') >= 0) {
            throw unresolved(reference, "it holds a zero byte");
        }
        return value;
    }

    private String read(String reference) {
        byte[] content;
        try {
            InputStream file = Files.newInputStream(Paths.get(reference.substring(5)));
            try {
                content = file.readNBytes(BYTES_MAX + 1);
            } finally {
                file.close();
            }
        } catch (IOException error) {
            throw unresolved(reference, "the file cannot be read: " + error.getClass().getSimpleName());
        }
        if (content.length > BYTES_MAX) {
            throw unresolved(reference, "the file has more than 64 kB, so it is no secret");
        }
        String value = text(content, reference);
        value = value.endsWith("\n") ? value.substring(0, value.length() - 1) : value;
        value = value.endsWith("\r") ? value.substring(0, value.length() - 1) : value;
        if (value.isEmpty()) {
            throw unresolved(reference, "the file is empty");
        }
        return value;
    }

    /** What a function of the user's says: in its first letter whether that is the secret, or why there is none. */
    private String ask(String reference, String login) {
        // Elsewhere Python is where Spark's own workers have it, and its modules are where Spark has sent them.
        boolean isElsewhere = System.getProperty("sun.java.command", "").split(" ")[0].endsWith("ExecutorBackend");
        String own = isElsewhere ? onExecutors() : (String) settings.get("path");
        String python = (String) settings.get(isElsewhere ? "executor.python" : "python");
        String inherited = System.getenv("PYTHONPATH");
        // -P: not from the working directory, where others may write.
        String[] words = new String[] {python, "-P", "-m", "lockgate.hooks", reference, login};
        ProcessBuilder command = new ProcessBuilder(words);
        command.environment().put("PYTHONPATH", inherited == null ? own : own + File.pathSeparator + inherited);
        command.redirectError(ProcessBuilder.Redirect.INHERIT);
        String answer;
        try {
            Process hook = command.start();
            hook.getOutputStream().close();
            try {
                answer = text(hook.getInputStream().readNBytes(BYTES_MAX + 1), reference);
            } finally {
                hook.destroyForcibly();
            }
        } catch (IOException error) {
            throw unresolved(reference, "Python does not start: " + python);
        }
        if (answer.startsWith("-")) {
            throw unresolved(reference, answer.substring(1));
        }
        if (answer.length() < 2) {
            String why = answer.isEmpty() ? "Python ended without an answer" : "the function returned an empty text";
            throw unresolved(reference, why);
        }
        return answer.substring(1);
    }

    /** What Spark has put into the working directory of an executor; spark/shipping.py names it. */
    private static String onExecutors() {
        StringBuilder path = new StringBuilder();
        String[] names = new File(".").list();
        for (int at = 0; names != null && at < names.length; at++) {
            if (names[at].matches("lockgate(-job)?-[0-9a-f]{32}\\.zip")) {
                path.append(names[at]).append(File.pathSeparator);
            }
        }
        return path.append("lockgate-environment").toString();
    }

    private String text(byte[] content, String reference) {
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(content)).toString();
        } catch (CharacterCodingException error) {
            throw unresolved(reference, "it is not UTF-8");
        }
    }

    /** As lockgate/connectors/kafka/jaas.py quotes the values of a login. */
    private static String quote(String value) {
        StringBuilder quoted = new StringBuilder();
        for (int at = 0; at < value.length(); at++) {
            char character = value.charAt(at);
            if (character == '"' || character == '\\') {
                quoted.append('\\').append(character);
            } else if (character < ' ') {
                quoted.append('\\').append((char) ('0' + character / 64)).append((char) ('0' + character / 8 % 8));
                quoted.append((char) ('0' + character % 8));
            } else {
                quoted.append(character);
            }
        }
        return quoted.toString();
    }

    private static String decode(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }

    private static ConfigException unresolved(String reference, String why) {
        return new ConfigException(reference + " leads to no value on this machine: " + why);
    }
}
