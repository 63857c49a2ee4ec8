import io.aeron.Aeron;
import io.aeron.ExclusivePublication;
import io.aeron.FragmentAssembler;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import org.agrona.concurrent.AgentInvoker;
import org.agrona.concurrent.UnsafeBuffer;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * One process of the Aeron JVM benches: pub, sub, ping or pong. Media driver settings are the usual aeron.*
 * system properties; "threading=inline" runs the driver in the caller's loop (invoker).
 */
public final class AeronBench
{
    private static final int STREAM_OUT = 1001;
    private static final int STREAM_BACK = 1002;
    private static final int WORK_EVERY = 256;

    private final Bench bench;
    private MediaDriver driver;
    private AgentInvoker driverInvoker;
    private Aeron aeron;
    private AgentInvoker clientInvoker;
    private final boolean giveWay;
    private long pongSeen;

    private AeronBench(final Bench bench)
    {
        this.bench = bench;
        giveWay = bench.text("give_way").equals("1");
    }

    public static void main(final String[] args) throws Exception
    {
        final Bench bench = new Bench(args);
        bench.runHot(() -> new AeronBench(bench).run());
    }

    private void run()
    {
        open();
        switch (bench.text("role"))
        {
            case "pub": publish(); break;
            case "sub": subscribe(); break;
            case "ping": ping(); break;
            case "pong": pong(); break;
            default: throw new IllegalArgumentException("role");
        }
        aeron.close();
        if (driver != null)
        {
            driver.close();
        }
    }

    private void open()
    {
        final String dir = bench.text("dir");
        final boolean inline = bench.text("threading").equals("inline");
        if (bench.text("embedded").equals("1"))
        {
            driver = MediaDriver.launch(new MediaDriver.Context()
                .aeronDirectoryName(dir)
                .dirDeleteOnStart(true)
                .dirDeleteOnShutdown(true)
                .threadingMode(inline ? ThreadingMode.INVOKER :
                    ThreadingMode.valueOf(bench.text("threading").toUpperCase())));
            driverInvoker = inline ? driver.sharedAgentInvoker() : null;
        }
        final Aeron.Context context = new Aeron.Context().aeronDirectoryName(dir).useConductorAgentInvoker(true);
        if (driverInvoker != null)
        {
            context.driverAgentInvoker(driverInvoker);
        }
        aeron = Aeron.connect(context);
        clientInvoker = aeron.conductorAgentInvoker();
    }

    private int work()
    {
        return driverInvoker == null ? 0 : driverInvoker.invoke();
    }

    private void giveWay()
    {
        if (giveWay)
        {
            Thread.yield();
        }
    }

    private void housekeeping()
    {
        work();
        clientInvoker.invoke();
    }

    private UnsafeBuffer message()
    {
        return new UnsafeBuffer(ByteBuffer.allocateDirect(bench.number("message_bytes")));
    }

    private void publish()
    {
        final ExclusivePublication publication = aeron.addExclusivePublication(bench.text("channel"), STREAM_OUT);
        final UnsafeBuffer buffer = message();
        final int batch = bench.number("batch");
        final int length = buffer.capacity();
        long sequence = 0;
        long backPressured = 0;
        int loops = 0;
        bench.ready();
        while (!publication.isConnected() && bench.running())
        {
            housekeeping();
        }
        while (bench.running())
        {
            boolean refused = false;
            for (int i = 0; i < batch; i++)
            {
                buffer.putLong(0, sequence, ByteOrder.LITTLE_ENDIAN);
                if (publication.offer(buffer, 0, length, null) > 0)
                {
                    sequence++;
                }
                else
                {
                    backPressured++;
                    refused = true;
                    break;
                }
            }
            if (work() == 0 && refused)
            {
                giveWay();
            }
            if (++loops % WORK_EVERY == 0)
            {
                clientInvoker.invoke();
            }
        }
        bench.result("offered", sequence, "back_pressured", backPressured);
    }

    private void subscribe()
    {
        final Subscription subscription = aeron.addSubscription(bench.text("channel"), STREAM_OUT);
        final int batch = bench.number("batch");
        final FragmentHandler handler = (buffer, offset, length, header) ->
            bench.count(buffer.getLong(offset, ByteOrder.LITTLE_ENDIAN));
        int loops = 0;
        bench.ready();
        while (!bench.windowClosed(loops))
        {
            final int polled = subscription.poll(handler, batch);
            if (work() + polled == 0)
            {
                giveWay();
            }
            if (++loops % WORK_EVERY == 0)
            {
                clientInvoker.invoke();
            }
        }
        bench.windowResult();
        while (bench.running()) // whoever leaves early stalls the publisher for the others
        {
            subscription.poll(handler, batch);
            housekeeping();
        }
    }

    private void ping()
    {
        final Subscription subscription = aeron.addSubscription(bench.text("back_channel"), STREAM_BACK);
        final ExclusivePublication publication = aeron.addExclusivePublication(bench.text("channel"), STREAM_OUT);
        final UnsafeBuffer buffer = message();
        final FragmentHandler handler = new FragmentAssembler((b, offset, length, header) ->
            pongSeen = b.getLong(offset, ByteOrder.LITTLE_ENDIAN));
        bench.ready();
        while (!(publication.isConnected() && subscription.isConnected()) && bench.running())
        {
            housekeeping();
        }
        int loops = 0;
        for (long round = 1; bench.moreRounds(round) && bench.running(); round++)
        {
            final long sentNs = System.nanoTime();
            buffer.putLong(0, round, ByteOrder.LITTLE_ENDIAN);
            while (publication.offer(buffer, 0, buffer.capacity(), null) < 0 && bench.running())
            {
                housekeeping();
            }
            work();
            while (pongSeen != round)
            {
                if (subscription.poll(handler, 10) == 0)
                {
                    work();
                }
                if (++loops % 1024 == 0)
                {
                    clientInvoker.invoke();
                    if (!bench.running())
                    {
                        return;
                    }
                }
            }
            bench.record(round, sentNs, System.nanoTime());
        }
        bench.rttResult();
    }

    private void pong()
    {
        final Subscription subscription = aeron.addSubscription(bench.text("channel"), STREAM_OUT);
        final ExclusivePublication publication =
            aeron.addExclusivePublication(bench.text("back_channel"), STREAM_BACK);
        final FragmentHandler handler = (buffer, offset, length, header) ->
        {
            while (publication.offer(buffer, offset, length, null) < 0 && bench.running())
            {
                housekeeping();
            }
            work();
        };
        int loops = 0;
        bench.ready();
        while (true)
        {
            if (subscription.poll(handler, 10) == 0)
            {
                work();
            }
            if (++loops % 1024 == 0)
            {
                clientInvoker.invoke();
                if (!bench.running())
                {
                    return;
                }
            }
        }
    }
}
