// Command sarama drives sarama through the client tests.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"bmq/tests/clients/driver"
)

const (
	linger  = 20 * time.Millisecond
	backoff = 100 * time.Millisecond
)

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

var strategies = map[string]func() sarama.BalanceStrategy{
	"range":      sarama.NewBalanceStrategyRange,
	"roundrobin": sarama.NewBalanceStrategyRoundRobin,
	"sticky":     sarama.NewBalanceStrategySticky,
}

type client struct {
	settings driver.Settings
	brokers  []string
	plain    sarama.Client
	admin    sarama.ClusterAdmin
}

func main() {
	driver.Main(func(settings driver.Settings) (driver.Client, error) {
		brokers := settings.Brokers()
		made := &client{settings: settings, brokers: brokers}
		if err := secure(sarama.NewConfig(), settings.Login); err != nil {
			return nil, err
		}
		var err error
		made.plain, err = sarama.NewClient(brokers, made.config())
		if err != nil {
			return nil, err
		}
		made.admin, err = sarama.NewClusterAdminFromClient(made.plain)
		return made, err
	})
}

func (c *client) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	if err := secure(config, c.settings.Login); err != nil {
		panic(err) // the program's start would have said so
	}
	return config
}

func (c *client) CreateTopic(_ context.Context, topic string, partitions int32) error {
	return c.admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: -1}, false)
}

func (c *client) DeleteTopic(_ context.Context, topic string) error {
	return c.admin.DeleteTopic(topic)
}

func (c *client) Partitions(_ context.Context, topic string) (int, error) {
	topics, err := c.admin.ListTopics()
	return int(topics[topic].NumPartitions), err
}

func (c *client) Produce(_ context.Context, topic, codec string, idempotent bool, messages []driver.Record) error {
	config := c.config()
	config.Producer.Compression = codecs[codec]
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.Frequency = linger
	config.Producer.Idempotent = idempotent
	if idempotent {
		config.Net.MaxOpenRequests = 1 // sarama asks for it
	}
	producer, err := sarama.NewSyncProducer(c.brokers, config)
	if err != nil {
		return err
	}
	var sent []*sarama.ProducerMessage
	for _, each := range messages {
		message := &sarama.ProducerMessage{Topic: topic, Partition: each.Partition, Timestamp: time.UnixMilli(each.Timestamp)}
		if each.Key != nil {
			message.Key = sarama.ByteEncoder(each.Key)
		}
		if each.Value != nil {
			message.Value = sarama.ByteEncoder(each.Value)
		}
		for _, header := range each.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Name), Value: header.Value})
		}
		sent = append(sent, message)
	}
	return errors.Join(withCause(producer.SendMessages(sent)), producer.Close())
}

// withCause adds why a message failed, which sarama's sum of errors does not say.
func withCause(err error) error {
	var failed sarama.ProducerErrors
	if errors.As(err, &failed) && len(failed) > 0 {
		return fmt.Errorf("%w: %w", err, failed[0].Err)
	}
	return err
}

func (c *client) memberConfig() *sarama.Config {
	config := c.config()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = c.settings.SessionTimeout()
	config.Consumer.Group.Heartbeat.Interval = c.settings.Heartbeat()
	config.Consumer.Group.Rebalance.Retry.Backoff = backoff
	return config
}

func (c *client) Consume(ctx context.Context, topics []string, group string, count int) ([]driver.Record, error) {
	member, err := sarama.NewConsumerGroup(c.brokers, group, c.memberConfig())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	taking := &taker{count: count, done: cancel}
	for ctx.Err() == nil {
		if err := member.Consume(ctx, topics, taking); err != nil {
			return nil, errors.Join(err, member.Close())
		}
	}
	if len(taking.records) < count {
		err = fmt.Errorf("%d of %d records in time", len(taking.records), count)
	}
	return taking.records, errors.Join(err, member.Close())
}

// taker takes records until it has enough of them, and commits them.
type taker struct {
	count   int
	done    func()
	mutex   sync.Mutex
	records []driver.Record
}

func (t *taker) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (t *taker) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (t *taker) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		if !t.take(session, message) {
			return nil
		}
	}
	return nil
}

func (t *taker) take(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if len(t.records) >= t.count {
		return false
	}
	record := driver.Record{
		Topic: message.Topic, Offset: message.Offset, Partition: message.Partition, Key: message.Key,
		Value: message.Value, Headers: []driver.Header{}, Timestamp: message.Timestamp.UnixMilli(),
	}
	for _, header := range message.Headers {
		record.Headers = append(record.Headers, driver.Header{Name: string(header.Key), Value: header.Value})
	}
	t.records = append(t.records, record)
	session.MarkMessage(message, "")
	if len(t.records) == t.count {
		session.Commit()
		t.done()
	}
	return true
}

func (c *client) OffsetsForTime(ctx context.Context, topic string, timestamp int64) (map[int32]int64, error) {
	return c.offsets(topic, timestamp)
}

func (c *client) FirstOffsets(_ context.Context, topic string) (map[int32]int64, error) {
	return c.offsets(topic, sarama.OffsetOldest)
}

func (c *client) offsets(topic string, time int64) (map[int32]int64, error) {
	if err := c.plain.RefreshMetadata(topic); err != nil {
		return nil, err
	}
	partitions, err := c.plain.Partitions(topic)
	found := map[int32]int64{}
	for _, partition := range partitions {
		if found[partition], err = c.plain.GetOffset(topic, partition, time); err != nil {
			return nil, err
		}
	}
	return found, err
}

func (c *client) DeleteRecords(_ context.Context, topic string, before map[int32]int64) error {
	return c.admin.DeleteRecords(topic, before)
}

func (c *client) Rebalance(ctx context.Context, topic, group, assignor string) (driver.Rebalance, error) {
	partitions, err := c.Partitions(ctx, topic)
	if err != nil {
		return driver.Rebalance{}, err
	}
	return driver.TwoMembers(ctx, partitions, func(held *driver.Assignment) (func(), error) {
		config := c.memberConfig()
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategies[assignor]()}
		member, err := sarama.NewConsumerGroup(c.brokers, group, config)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				if err := member.Consume(ctx, []string{topic}, &watcher{topic, held}); err != nil {
					return // the wait for the assignment fails then
				}
			}
		}()
		return func() { cancel(); <-ended; member.Close() }, nil
	})
}

// watcher notes what is claimed in each session.
type watcher struct {
	topic string
	held  *driver.Assignment
}

func (w *watcher) Setup(session sarama.ConsumerGroupSession) error {
	w.held.Add(session.Claims()[w.topic])
	return nil
}

func (w *watcher) Cleanup(session sarama.ConsumerGroupSession) error {
	w.held.Remove(session.Claims()[w.topic])
	return nil
}

func (w *watcher) ConsumeClaim(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for range claim.Messages() {
	}
	return nil
}

func (c *client) Groups(context.Context) ([]string, error) {
	listed, err := c.admin.ListConsumerGroups()
	names := []string{}
	for name := range listed {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, err
}

func (c *client) DescribeGroup(_ context.Context, group string) (driver.GroupState, error) {
	described, err := c.admin.DescribeConsumerGroups([]string{group})
	if err != nil {
		return driver.GroupState{}, err
	}
	if described[0].Err != sarama.ErrNoError {
		return driver.GroupState{}, described[0].Err
	}
	return driver.GroupState{State: described[0].State, Members: len(described[0].Members)}, nil
}

func (c *client) DeleteGroup(_ context.Context, group string) error {
	return c.admin.DeleteConsumerGroup(group)
}
