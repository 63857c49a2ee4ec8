import org.nustaq.fastcast.api.FCPublisher;
import org.nustaq.fastcast.api.FCSubscriber;
import org.nustaq.fastcast.api.FastCast;
import org.nustaq.fastcast.config.PhysicalTransportConf;
import org.nustaq.fastcast.config.PublisherConf;
import org.nustaq.fastcast.config.SubscriberConf;
import org.nustaq.offheap.bytez.Bytez;
import org.nustaq.offheap.bytez.onheap.HeapBytez;

import java.util.concurrent.locks.LockSupport;

/**
 * One process of the fast-cast benches: pub, sub, ping or pong.
 *
 * A subscriber's work happens in fast-cast's own receive thread, and the ping is sent from there too, so that
 * a process of the ping-pong is one spinning thread. spinLoopMicros must stay below 2.1 million: beyond it an
 * int overflow in fast-cast turns spinning off.
 */
public final class FastCastBench
{
    private static final int TOPIC = 1;
    private static final int SPIN_MICROS_MAX = 2_000_000;

    /** Packets a second while the subscriber allocates its buffers, which it does at the first packet. */
    private static final int RAMP_PPS = 500;

    private final Bench bench;
    private final byte[] message;
    private final HeapBytez payload;
    private volatile boolean measured;

    private FastCastBench(final Bench bench)
    {
        this.bench = bench;
        message = new byte[bench.number("message_bytes")];
        payload = new HeapBytez(message);
    }

    public static void main(final String[] args) throws Exception
    {
        final Bench bench = new Bench(args);
        bench.runHot(() -> new FastCastBench(bench).run());
    }

    private void run()
    {
        FastCast.getFastCast().setNodeId(bench.text("node"));
        switch (bench.text("role"))
        {
            case "pub": publish(); break;
            case "sub": subscribe(); break;
            case "ping": ping(); break;
            case "pong": pong(); break;
            default: throw new IllegalArgumentException("role");
        }
    }

    private void addTransport(final String name, final String groupKey, final String portKey, final boolean spin)
    {
        FastCast.getFastCast().addTransport(new PhysicalTransportConf(name)
            .interfaceAdr("127.0.0.1")
            .mulitcastAdr(bench.text(groupKey))
            .port(bench.number(portKey))
            .ttl(0)
            .setDgramsize(bench.number("packet_bytes"))
            .socketReceiveBufferSize(bench.number("socket_bytes"))
            .socketSendBufferSize(bench.number("socket_bytes"))
            .autoFlushMS(1)
            .spinLoopMicros(spin ? SPIN_MICROS_MAX : 0)
            .idleParkMicros(bench.number("park_us")));
    }

    private FCPublisher publisher(final String transport)
    {
        return FastCast.getFastCast().onTransport(transport).publish(new PublisherConf(TOPIC)
            .numPacketHistory(bench.number("history_packets"))
            .pps(bench.number("pps"))
            .ppsWindow(bench.number("pps_window"))
            .heartbeatInterval(bench.number("heartbeat_ms")));
    }

    private void subscriber(final String transport, final Receiver receiver)
    {
        FastCast.getFastCast().onTransport(transport).subscribe(
            new SubscriberConf(TOPIC).receiveBufferPackets(bench.number("receive_packets")), receiver);
    }

    private void put(final long sequence)
    {
        payload.putLong(0, sequence);
    }

    private void publish()
    {
        addTransport("out", "group", "port", false);
        final FCPublisher publisher = publisher("out");
        final int batch = bench.number("batch");
        long sequence = 0;
        long refused = 0;
        boolean ramping = true;
        final long rampEndNs = System.nanoTime() + bench.nanos("ramp_s");
        publisher.setPacketRateLimit(RAMP_PPS);
        bench.ready();
        while (bench.running())
        {
            if (ramping && System.nanoTime() > rampEndNs)
            {
                ramping = false;
                publisher.setPacketRateLimit(bench.number("pps"));
            }
            for (int i = 0; i < batch; i++)
            {
                put(sequence);
                if (publisher.offer(null, payload, 0, message.length, false))
                {
                    sequence++;
                }
                else
                {
                    refused++;
                    publisher.flush();
                }
            }
        }
        bench.result("offered", sequence, "back_pressured", refused);
    }

    private void subscribe()
    {
        final Receiver receiver = new Receiver()
        {
            private int loops;

            @Override
            public void messageReceived(
                final String sender, final long sequence, final Bytez b, final long off, final int len)
            {
                nameThread();
                if (measured)
                {
                    return;
                }
                bench.count(b.getLong(off));
                if (!done && (++loops & 15) == 0 && bench.windowClosed(loops))
                {
                    done = true;
                }
            }
        };
        addTransport("out", "group", "port", bench.text("spin").equals("1"));
        subscriber("out", receiver);
        bench.ready();
        waitFor(receiver);
        bench.windowResult("dropped", receiver.drops);
        receiver.done = false; // stays until told to stop: a subscriber that leaves disturbs the others
        measured = true;
        waitFor(receiver);
    }

    private void ping()
    {
        final FCPublisher[] out = new FCPublisher[1];
        final Receiver receiver = new Receiver()
        {
            @Override
            public void messageReceived(
                final String sender, final long sequence, final Bytez b, final long off, final int len)
            {
                final long gotNs = System.nanoTime();
                nameThread();
                if (done || b.getLong(off) != round)
                {
                    return;
                }
                bench.record(round, sentNs, gotNs);
                round++;
                if (!bench.moreRounds(round) || !bench.running())
                {
                    done = true;
                    return;
                }
                send(out[0]);
            }
        };
        addTransport("out", "group", "port", false);
        addTransport("back", "back_group", "back_port", true);
        out[0] = publisher("out");
        subscriber("back", receiver);
        bench.ready();
        final long patienceNs = 1_000_000_000L;
        while (!receiver.done && bench.running())
        {
            final long before = receiver.round;
            if (before == 1)
            {
                receiver.send(out[0]); // fast-cast loses what is sent before the subscriber knows the sender
            }
            LockSupport.parkNanos(before == 1 ? 200_000_000L : patienceNs);
        }
        bench.rttResult();
    }

    private void pong()
    {
        final FCPublisher[] back = new FCPublisher[1];
        final Receiver receiver = new Receiver()
        {
            @Override
            public void messageReceived(
                final String sender, final long sequence, final Bytez b, final long off, final int len)
            {
                nameThread();
                while (!back[0].offer(null, b, off, len, true))
                {
                    back[0].flush();
                }
            }
        };
        addTransport("out", "group", "port", true);
        addTransport("back", "back_group", "back_port", false);
        back[0] = publisher("back");
        subscriber("out", receiver);
        bench.ready();
        waitFor(receiver);
    }

    private void waitFor(final Receiver receiver)
    {
        while (!receiver.done && bench.running())
        {
            LockSupport.parkNanos(1_000_000L);
        }
    }

    /** What the four roles' callbacks have in common. */
    private abstract class Receiver implements FCSubscriber
    {
        volatile boolean done;
        volatile int drops;
        volatile long round = 1;
        volatile long sentNs;
        private boolean named;

        void nameThread()
        {
            if (!named)
            {
                named = true;
                Thread.currentThread().setName(Bench.HOT_THREAD);
                bench.pinMe();
            }
        }

        void send(final FCPublisher publisher)
        {
            put(round);
            sentNs = System.nanoTime();
            while (!publisher.offer(null, payload, 0, message.length, true) && bench.running())
            {
                publisher.flush();
            }
        }

        @Override
        public boolean dropped()
        {
            drops++;
            return true;
        }

        @Override
        public void senderTerminated(final String sender)
        {
            // the parent ends the run
        }

        @Override
        public void senderBootstrapped(final String sender, final long sequence)
        {
            // nothing to prepare
        }
    }
}
