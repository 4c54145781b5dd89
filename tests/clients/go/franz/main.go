// Command franz drives franz-go through the client tests.  With more arguments than settings, it is an application.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"bmq/tests/clients/driver"
)

const (
	linger         = 20 * time.Millisecond
	metadataMinAge = 100 * time.Millisecond // a topic made just now is looked for again this soon
	fetchMaxWait   = 200 * time.Millisecond
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

var balancers = map[string]kgo.GroupBalancer{
	"range":              kgo.RangeBalancer(),
	"roundrobin":         kgo.RoundRobinBalancer(),
	"sticky":             kgo.StickyBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer(),
}

type client struct {
	settings driver.Settings
	admin    *kadm.Client
	lasting  *lasting
	// transactors are producers with transactional ids, by the numbers that the tests gave them.
	transactors map[int]*kgo.Client
}

func main() {
	if len(os.Args) > 2 {
		application(os.Args[1:])
	}
	driver.Main(func(settings driver.Settings) (driver.Client, error) {
		made := &client{settings: settings, transactors: map[int]*kgo.Client{}}
		plain, err := made.connect()
		if err != nil {
			return nil, err
		}
		made.admin = kadm.NewClient(plain)
		return made, nil
	})
}

func (c *client) connect(options ...kgo.Opt) (*kgo.Client, error) {
	all, err := common(c.settings)
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(all, options...)...)
}

func (c *client) CreateTopic(ctx context.Context, topic string, partitions int32) error {
	_, err := c.admin.CreateTopic(ctx, partitions, -1, nil, topic)
	return err
}

func (c *client) DeleteTopic(ctx context.Context, topic string) error {
	_, err := c.admin.DeleteTopic(ctx, topic)
	return err
}

func (c *client) Partitions(ctx context.Context, topic string) (int, error) {
	topics, err := c.admin.ListTopics(ctx, topic)
	if err != nil {
		return 0, err
	}
	found := topics[topic]
	if found.Err == kerr.UnknownTopicOrPartition {
		return 0, nil
	}
	return len(found.Partitions), found.Err
}

func (c *client) Produce(ctx context.Context, topic, codec string, idempotent bool, messages []driver.Record) error {
	options := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[codec]),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(linger),
	}
	if !idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	producer, err := c.connect(options...)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := producer.Ping(ctx); err != nil { // who is refused learns why here; a produce tries until its end
		return err
	}
	var records []*kgo.Record
	for _, each := range messages {
		record := &kgo.Record{
			Topic: topic, Partition: each.Partition, Key: each.Key, Value: each.Value,
			Timestamp: time.UnixMilli(each.Timestamp),
		}
		for _, header := range each.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: header.Name, Value: header.Value})
		}
		records = append(records, record)
	}
	return producer.ProduceSync(ctx, records...).FirstErr()
}

func (c *client) member(topics []string, group string, options ...kgo.Opt) (*kgo.Client, error) {
	return c.connect(append(options,
		kgo.ConsumeTopics(topics...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(c.settings.SessionTimeout()),
		kgo.HeartbeatInterval(c.settings.Heartbeat()),
		kgo.FetchMaxWait(fetchMaxWait),
	)...)
}

func (c *client) Consume(ctx context.Context, topics []string, group string, count int) ([]driver.Record, error) {
	member, err := c.member(topics, group)
	if err != nil {
		return nil, err
	}
	defer member.Close()
	var taken []*kgo.Record
	for len(taken) < count {
		fetches := member.PollRecords(ctx, count-len(taken))
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("after %d of %d records: %w", len(taken), count, err)
		}
		taken = append(taken, fetches.Records()...)
	}
	if err := member.CommitRecords(ctx, taken...); err != nil {
		return nil, err
	}
	records := make([]driver.Record, 0, count)
	for _, each := range taken {
		record := driver.Record{
			Topic: each.Topic, Offset: each.Offset, Partition: each.Partition, Key: each.Key, Value: each.Value,
			Headers: []driver.Header{}, Timestamp: each.Timestamp.UnixMilli(),
		}
		for _, header := range each.Headers {
			record.Headers = append(record.Headers, driver.Header{Name: header.Key, Value: header.Value})
		}
		records = append(records, record)
	}
	return records, nil
}

func (c *client) OffsetsForTime(ctx context.Context, topic string, timestamp int64) (map[int32]int64, error) {
	listed, err := c.admin.ListOffsetsAfterMilli(ctx, timestamp, topic)
	return offsets(listed, err, func(each kadm.ListedOffset) int64 {
		if each.Timestamp == -1 {
			return -1 // where Kafka found none, the library puts the end of the partition, without a time
		}
		return each.Offset
	})
}

func (c *client) FirstOffsets(ctx context.Context, topic string) (map[int32]int64, error) {
	listed, err := c.admin.ListStartOffsets(ctx, topic)
	return offsets(listed, err, func(each kadm.ListedOffset) int64 { return each.Offset })
}

func offsets(listed kadm.ListedOffsets, err error, offset func(kadm.ListedOffset) int64) (map[int32]int64, error) {
	if err == nil {
		err = listed.Error()
	}
	found := map[int32]int64{}
	listed.Each(func(each kadm.ListedOffset) { found[each.Partition] = offset(each) })
	return found, err
}

func (c *client) DeleteRecords(ctx context.Context, topic string, before map[int32]int64) error {
	offsets := kadm.Offsets{}
	for partition, offset := range before {
		offsets.AddOffset(topic, partition, offset, -1)
	}
	answers, err := c.admin.DeleteRecords(ctx, offsets)
	if err == nil {
		err = answers.Error()
	}
	return err
}

func (c *client) Rebalance(ctx context.Context, topic, group, assignor string) (driver.Rebalance, error) {
	partitions, err := c.Partitions(ctx, topic)
	if err != nil {
		return driver.Rebalance{}, err
	}
	return driver.TwoMembers(ctx, partitions, func(held *driver.Assignment) (func(), error) {
		remove := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { held.Remove(lost[topic]) }
		member, err := c.member([]string{topic}, group,
			kgo.Balancers(balancers[assignor]),
			kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) { held.Add(added[topic]) }),
			kgo.OnPartitionsRevoked(remove),
			kgo.OnPartitionsLost(remove),
		)
		if err != nil {
			return nil, err
		}
		return member.Close, nil
	})
}

func (c *client) Groups(ctx context.Context) ([]string, error) {
	listed, err := c.admin.ListGroups(ctx)
	return listed.Groups(), err
}

func (c *client) DescribeGroup(ctx context.Context, group string) (driver.GroupState, error) {
	described, err := c.admin.DescribeGroups(ctx, group)
	if err == nil {
		err = described.Error()
	}
	return driver.GroupState{State: described[group].State, Members: len(described[group].Members)}, err
}

func (c *client) DeleteGroup(ctx context.Context, group string) error {
	_, err := c.admin.DeleteGroup(ctx, group)
	return err
}
