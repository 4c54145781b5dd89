package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// metadataMaxAge has metadata refreshed while a test runs, as five minutes (the default) do in a long life.
const metadataMaxAge = 250 * time.Millisecond

// lasting is a client that lives as long as the program.
type lasting struct {
	client    *kgo.Client
	refreshed chan struct{} // one for each Metadata response, as far as somebody waits
}

// OnBrokerRead is kgo.HookBrokerRead.
func (l *lasting) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == int16(kmsg.Metadata) && err == nil {
		select {
		case l.refreshed <- struct{}{}:
		default:
		}
	}
}

// Exchange implements driver.Exchanger.
func (c *client) Exchange(ctx context.Context, topic string) (int32, error) {
	if c.lasting == nil {
		lasting := &lasting{refreshed: make(chan struct{})}
		client, err := c.connect(
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
			kgo.MetadataMaxAge(metadataMaxAge),
			kgo.FetchMaxWait(fetchMaxWait),
			kgo.WithHooks(lasting),
		)
		if err != nil {
			return -1, err
		}
		lasting.client = client
		c.lasting = lasting
	}
	client := c.lasting.client
	type outcome struct {
		offset int64
		err    error
	}
	produced := make(chan outcome, 1)
	client.Produce(ctx, &kgo.Record{Topic: topic, Value: []byte("exchanged")}, func(record *kgo.Record, err error) {
		produced <- outcome{record.Offset, err}
	})
	var end outcome
	select {
	case end = <-produced:
	case <-ctx.Done(): // the client itself goes on with an idempotent batch that may have arrived
		end.err = ctx.Err()
	}
	if end.err != nil {
		leader, epoch, err := client.PartitionLeader(topic, 0)
		return -1, fmt.Errorf("producing to leader %d with epoch %d (%v): %w", leader, epoch, err, end.err)
	}
	for next := int64(-1); next <= end.offset; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return -1, fmt.Errorf("consuming offset %d, after %d: %w", end.offset, next-1, err)
		}
		fetches.EachRecord(func(each *kgo.Record) { next = each.Offset + 1 })
	}
	// When the second response is read, the client has taken what is in the first.
	for range 2 {
		select {
		case <-c.lasting.refreshed:
		case <-ctx.Done():
			return -1, fmt.Errorf("refreshing metadata: %w", ctx.Err())
		}
	}
	leader, _, err := client.PartitionLeader(topic, 0)
	return leader, err
}
