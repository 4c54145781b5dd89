package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// transaction is a request of the transaction tests; each operation has some of the fields.
type transaction struct {
	Producer        int                `json:"producer"`
	ID              string             `json:"id"`
	TimeoutMs       int                `json:"txn_timeout_ms"`
	Topic           string             `json:"topic"`
	Values          map[int32][]string `json:"values"`
	Group           string             `json:"group"`
	Commit          bool               `json:"commit"`
	Partitions      int32              `json:"partitions"`
	Committed       bool               `json:"committed"`
	Sentinel        string             `json:"sentinel"`
	Source          string             `json:"source"`
	Sink            string             `json:"sink"`
	TransactionalID string             `json:"transactional_id"`
	Count           int64              `json:"count"`
	Batch           int                `json:"batch"`
	AbortEvery      int                `json:"abort_every"`
}

// Transact implements driver.Transactor.
func (c *client) Transact(ctx context.Context, operation string, line []byte) (any, error) {
	var asked transaction
	if err := json.Unmarshal(line, &asked); err != nil {
		return nil, err
	}
	producer := c.transactors[asked.Producer]
	switch operation {
	case "txn_open":
		made, err := c.connect(
			kgo.TransactionalID(asked.ID),
			kgo.TransactionTimeout(time.Duration(asked.TimeoutMs)*time.Millisecond),
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
		)
		if err != nil {
			return nil, err
		}
		c.transactors[asked.Producer] = made
		_, _, err = made.ProducerID(ctx) // InitProducerId is sent here, and not with the first record
		return nil, err
	case "txn_begin":
		return nil, producer.BeginTransaction()
	case "txn_send":
		var records []*kgo.Record
		for partition, values := range asked.Values {
			for _, value := range values {
				records = append(records, &kgo.Record{Topic: asked.Topic, Partition: partition, Value: []byte(value)})
			}
		}
		return nil, producer.ProduceSync(ctx, records...).FirstErr()
	case "txn_end":
		return nil, producer.EndTransaction(ctx, kgo.TransactionEndTry(asked.Commit))
	case "txn_close":
		delete(c.transactors, asked.Producer)
		producer.Close()
		return nil, nil
	case "txn_read":
		return c.readTo(ctx, asked)
	case "txn_transform":
		return c.transform(ctx, asked)
	}
	return nil, fmt.Errorf("unknown operation %q", operation)
}

// readTo returns the values of each partition before the sentinel.
func (c *client) readTo(ctx context.Context, asked transaction) (map[int32][]string, error) {
	found, places := map[int32][]string{}, map[int32]kgo.Offset{}
	for partition := range asked.Partitions {
		found[partition], places[partition] = []string{}, kgo.NewOffset().AtStart()
	}
	isolation := kgo.ReadUncommitted()
	if asked.Committed {
		isolation = kgo.ReadCommitted()
	}
	reader, err := c.connect(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{asked.Topic: places}),
		kgo.FetchIsolationLevel(isolation),
		kgo.FetchMaxWait(fetchMaxWait),
	)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	ended := map[int32]bool{}
	for len(ended) < len(places) {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("ended %v: %w", ended, err)
		}
		fetches.EachRecord(func(each *kgo.Record) {
			if value := string(each.Value); value == asked.Sentinel {
				ended[each.Partition] = true
			} else {
				found[each.Partition] = append(found[each.Partition], value)
			}
		})
	}
	return found, nil
}

// transform consumes, transforms and produces, until so many records are committed; every few transactions one is
// aborted.  It returns how many transactions it committed.
func (c *client) transform(ctx context.Context, asked transaction) (int, error) {
	options, err := common(c.settings)
	if err != nil {
		return 0, err
	}
	session, err := kgo.NewGroupTransactSession(append(options,
		kgo.TransactionalID(asked.TransactionalID),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumeTopics(asked.Source),
		kgo.ConsumerGroup(asked.Group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(fetchMaxWait),
	)...)
	if err != nil {
		return 0, err
	}
	defer session.Close()
	next, committed := map[int32]int64{}, 0
	for number := 1; total(next) < asked.Count; number++ {
		fetches := session.PollRecords(ctx, asked.Batch)
		if err := fetches.Err(); err != nil {
			return committed, fmt.Errorf("next %v: %w", next, err)
		}
		ended, err := transact(ctx, session, fetches, asked.Sink, kgo.TransactionEndTry(number%asked.AbortEvery != 0))
		if err != nil {
			return committed, err
		}
		if ended {
			committed++
			fetches.EachRecord(func(each *kgo.Record) { next[each.Partition] = each.Offset + 1 })
		}
	}
	return committed, nil
}

func total(offsets map[int32]int64) int64 {
	var sum int64
	for _, offset := range offsets {
		sum += offset
	}
	return sum
}
