import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

/**
 * What every JVM bench process does alike: "key=value" arguments, one hot thread, JSON lines on standard
 * output, a closed standard input as the stop sign, the measuring window and the round-trip percentiles.
 */
final class Bench
{
    static final String HOT_THREAD = "bench-hot";

    private final Map<String, String> config = new HashMap<>();
    private final long endNs;
    private final long[] rttNs;
    private final int warmupRounds;
    private final long nanosOfWindow;
    private final long nanosOfWarmup;
    private volatile boolean stopped;
    private volatile Throwable failure;

    // of the subscriber
    private long received;
    private long expected;
    private long lost;
    private long duplicated;
    private long startNs;
    private long nowNs;
    private long receivedBefore;
    private boolean measuring;

    // of the ping
    private int roundsDone;
    private long measuredFromNs;

    Bench(final String[] args)
    {
        for (final String arg : args)
        {
            final int equals = arg.indexOf('=');
            config.put(arg.substring(0, equals), arg.substring(equals + 1));
        }
        endNs = System.nanoTime() + nanos("deadline_s");
        rttNs = new long[number("rounds")];
        warmupRounds = number("warmup_rounds");
        nanosOfWindow = nanos("seconds");
        nanosOfWarmup = nanos("warmup_s");
    }

    String text(final String key)
    {
        return config.get(key);
    }

    int number(final String key)
    {
        return Integer.parseInt(config.get(key));
    }

    long nanos(final String key)
    {
        return (long)(Double.parseDouble(config.get(key)) * 1e9);
    }

    /** Runs the bench in the thread that the parent pins, and ends the process with it. */
    void runHot(final Runnable body) throws InterruptedException
    {
        final Thread stopper = new Thread(() ->
        {
            try
            {
                System.in.read();
            }
            catch (final java.io.IOException ignored)
            {
                // a broken standard input is a stop sign as well
            }
            stopped = true;
        }, "bench-stop");
        stopper.setDaemon(true);
        stopper.start();
        final Thread hot = new Thread(body, HOT_THREAD);
        hot.setUncaughtExceptionHandler((thread, thrown) -> failure = thrown);
        hot.start();
        hot.join();
        if (failure != null)
        {
            failure.printStackTrace();
        }
        System.out.flush();
        Runtime.getRuntime().halt(failure == null ? 0 : 1);
    }

    boolean running()
    {
        return !stopped && System.nanoTime() < endNs;
    }

    void ready()
    {
        say("{\"event\": \"ready\"}");
    }

    /** The calling thread now bears HOT_THREAD's name and wants a core. */
    void pinMe()
    {
        say("{\"event\": \"pin\"}");
    }

    void result(final Object... keysAndValues)
    {
        final StringBuilder line = new StringBuilder("{\"event\": \"result\"");
        for (int i = 0; i < keysAndValues.length; i += 2)
        {
            line.append(", \"").append(keysAndValues[i]).append("\": ").append(keysAndValues[i + 1]);
        }
        say(line.append('}').toString());
    }

    private static synchronized void say(final String line)
    {
        System.out.println(line);
        System.out.flush();
    }

    void count(final long sequence)
    {
        if (sequence == expected)
        {
            expected++;
        }
        else if (sequence > expected)
        {
            if (received > 0)
            {
                lost += sequence - expected;
            }
            expected = sequence + 1;
        }
        else
        {
            duplicated++;
        }
        received++;
    }

    /** Call once a loop; reads the clock every 16th. */
    boolean windowClosed(final int loops)
    {
        if ((loops & 15) != 0)
        {
            return false;
        }
        nowNs = System.nanoTime();
        if (stopped || nowNs > endNs)
        {
            return true;
        }
        if (received == 0)
        {
            return false;
        }
        if (startNs == 0)
        {
            startNs = nowNs;
        }
        if (measuring)
        {
            return nowNs - startNs >= nanosOfWindow;
        }
        if (nowNs - startNs >= nanosOfWarmup)
        {
            measuring = true;
            startNs = nowNs;
            receivedBefore = received;
            lost = 0;
            duplicated = 0;
        }
        return false;
    }

    void windowResult(final Object... more)
    {
        final Object[] fields = Arrays.copyOf(new Object[]{"received", measuring ? received - receivedBefore : 0,
            "elapsed_ns", measuring ? nowNs - startNs : 0, "lost", lost, "duplicated", duplicated},
            8 + more.length);
        System.arraycopy(more, 0, fields, 8, more.length);
        result(fields);
    }

    boolean moreRounds(final long round)
    {
        return round <= (long)warmupRounds + rttNs.length &&
            (measuredFromNs == 0 || System.nanoTime() - measuredFromNs < nanosOfWindow);
    }

    void record(final long round, final long sentNs, final long gotNs)
    {
        if (round > warmupRounds)
        {
            if (measuredFromNs == 0)
            {
                measuredFromNs = sentNs;
            }
            rttNs[roundsDone++] = gotNs - sentNs;
        }
    }

    void rttResult()
    {
        final long[] ordered = Arrays.copyOf(rttNs, roundsDone);
        Arrays.sort(ordered);
        if (roundsDone == 0)
        {
            result("rounds_done", 0);
            return;
        }
        double sum = 0;
        for (final long value : ordered)
        {
            sum += value;
        }
        result("rounds_done", roundsDone, "rtt_mean_us", micros(sum / roundsDone),
            "rtt_p50_us", at(ordered, 0.5), "rtt_p90_us", at(ordered, 0.9), "rtt_p99_us", at(ordered, 0.99),
            "rtt_p999_us", at(ordered, 0.999), "rtt_p9999_us", at(ordered, 0.9999),
            "rtt_max_us", micros(ordered[roundsDone - 1]));
    }

    private static String at(final long[] ordered, final double share)
    {
        return micros(ordered[Math.min(ordered.length - 1, (int)(ordered.length * share))]);
    }

    private static String micros(final double nanos)
    {
        return String.format(Locale.ROOT, "%.3f", nanos / 1e3);
    }
}
