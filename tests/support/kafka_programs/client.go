// franz-go against an endpoint: client ADDRESS produce|consume|rebalance|transaction|scram TOPIC ...
// It writes its findings as one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var (
	address, action, topic = os.Args[1], os.Args[2], os.Args[3]
	rest                   = os.Args[4:]
	codecs                 = map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
)

func must(problem error) {
	if problem != nil {
		fmt.Fprintln(os.Stderr, problem)
		os.Exit(1)
	}
}

func tell(found any) { must(json.NewEncoder(os.Stdout).Encode(found)) }

func number(text string) int {
	n, problem := strconv.Atoi(text)
	must(problem)
	return n
}

func client(options ...kgo.Opt) *kgo.Client {
	made, problem := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(address), kgo.ClientID("franz-go")}, options...)...)
	must(problem)
	return made
}

func produce(ctx context.Context) {
	made := client(kgo.ProducerBatchCompression(codecs[rest[1]]), kgo.DefaultProduceTopic(topic))
	var records []*kgo.Record
	for i := range number(rest[0]) {
		n := strconv.Itoa(i)
		records = append(records, &kgo.Record{
			Key: []byte("k" + strconv.Itoa(i%9)), Value: []byte("v" + n),
			Headers: []kgo.RecordHeader{{Key: "n", Value: []byte(n)}},
		})
	}
	must(made.ProduceSync(ctx, records...).FirstErr())
	made.Close()
	tell(len(records))
}

func consume(ctx context.Context) {
	made := client(kgo.ConsumerGroup(rest[0]), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	found := [][]any{}
	for len(found) < number(rest[1]) {
		polled := made.PollFetches(ctx)
		must(polled.Err0())
		polled.EachRecord(func(r *kgo.Record) {
			var n any
			for _, header := range r.Headers {
				if header.Key == "n" {
					n = string(header.Value)
				}
			}
			found = append(found, []any{r.Partition, r.Offset, string(r.Key), string(r.Value), n})
		})
	}
	must(made.CommitUncommittedOffsets(ctx))
	made.LeaveGroup()
	made.Close()
	tell(found)
}

// Owned partitions of each member, as it is told.
type members struct {
	sync.Mutex
	owned map[string]map[int32]bool
}

func (m *members) join(ctx context.Context, name string, balancer kgo.GroupBalancer) *kgo.Client {
	m.owned[name] = map[int32]bool{}
	set := func(has bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, told map[string][]int32) {
			m.Lock()
			defer m.Unlock()
			for _, partition := range told[topic] {
				if has {
					m.owned[name][partition] = true
				} else {
					delete(m.owned[name], partition)
				}
			}
		}
	}
	made := client(kgo.ConsumerGroup(rest[0]), kgo.ConsumeTopics(topic), kgo.Balancers(balancer),
		kgo.HeartbeatInterval(100*time.Millisecond), kgo.OnPartitionsAssigned(set(true)),
		kgo.OnPartitionsRevoked(set(false)), kgo.OnPartitionsLost(set(false)))
	go func() {
		for ctx.Err() == nil && !made.PollFetches(ctx).IsClientClosed() {
		}
	}()
	return made
}

func (m *members) settled(ctx context.Context, partitions int, names ...string) []int {
	for {
		m.Lock()
		all, counts, n, empty := map[int32]bool{}, []int{}, 0, false
		for _, name := range names {
			for partition := range m.owned[name] {
				all[partition] = true
			}
			n += len(m.owned[name])
			counts = append(counts, len(m.owned[name]))
			empty = empty || len(m.owned[name]) == 0
		}
		m.Unlock()
		if len(all) == partitions && n == partitions && !empty {
			return counts
		}
		select {
		case <-ctx.Done():
			must(fmt.Errorf("no balance: %v", counts))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func rebalance(ctx context.Context) {
	balancers := map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "cooperative": kgo.CooperativeStickyBalancer(),
	}
	m, n, balancer := &members{owned: map[string]map[int32]bool{}}, number(rest[1]), balancers[rest[2]]
	a := m.join(ctx, "a", balancer)
	steps := [][]int{m.settled(ctx, n, "a")}
	b := m.join(ctx, "b", balancer)
	steps = append(steps, m.settled(ctx, n, "a", "b"))
	b.Close()
	steps = append(steps, m.settled(ctx, n, "a"))
	a.Close()
	tell(steps)
}

func refused(problem error) {
	told := ""
	if problem != nil {
		told = problem.Error()
	}
	tell(map[string]string{"error": told})
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	switch action {
	case "produce":
		produce(ctx)
	case "consume":
		consume(ctx)
	case "rebalance":
		rebalance(ctx)
	case "transaction":
		made := client(kgo.TransactionalID("t"), kgo.DefaultProduceTopic(topic))
		problem := made.BeginTransaction()
		if problem == nil {
			problem = made.ProduceSync(ctx, kgo.StringRecord("no")).FirstErr()
		}
		refused(problem)
	case "scram":
		auth := scram.Auth{User: "shop", Pass: "secret"}
		refused(client(kgo.SASL(auth.AsSha256Mechanism())).Ping(ctx))
	default:
		must(fmt.Errorf("%s: no such action", action))
	}
}
