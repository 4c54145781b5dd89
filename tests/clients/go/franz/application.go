package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	applicationBatch = 50 // the largest number of records in a transaction
	pollTime         = 200 * time.Millisecond
	callTime         = 25 * time.Second
	pauseTime        = 500 * time.Millisecond // between a session that failed and the next one
	sessionTimeout   = 10 * time.Second
	transactionTime  = 30 * time.Second
)

// application consumes, transforms and produces in transactions, until it is killed.  After an error it begins anew.  Its
// arguments are those of tests/integration/transformer.py: servers, source, sink, group and transactional id.
func application(arguments []string) {
	for {
		err := runSession(arguments)
		fmt.Printf("%s begins anew: %v\n", time.Now().Format(time.TimeOnly), err)
		time.Sleep(pauseTime)
	}
}

func runSession(arguments []string) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(arguments[0], ",")...),
		kgo.ConsumeTopics(arguments[1]),
		kgo.ConsumerGroup(arguments[3]),
		kgo.TransactionalID(arguments[4]),
		kgo.TransactionTimeout(transactionTime),
		kgo.SessionTimeout(sessionTimeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.FetchMaxWait(fetchMaxWait),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for {
		fetches := pollFor(session, pollTime)
		if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), callTime)
		_, err := transact(ctx, session, fetches, arguments[2], kgo.TryCommit)
		cancel()
		if err != nil {
			return err
		}
	}
}

func pollFor(session *kgo.GroupTransactSession, wait time.Duration) kgo.Fetches {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	return session.PollRecords(ctx, applicationBatch)
}

// transact writes the transformed records to the same partitions of the sink, and ends their transaction with the
// group's offsets.  It returns whether it was committed: no after a rebalance, for which the session goes back.
func transact(
	ctx context.Context, session *kgo.GroupTransactSession, fetches kgo.Fetches, sink string, end kgo.TransactionEndTry,
) (bool, error) {
	if err := session.Begin(); err != nil {
		return false, err
	}
	var records []*kgo.Record
	fetches.EachRecord(func(each *kgo.Record) {
		value := fmt.Sprintf("%d/%d %s", each.Partition, each.Offset, each.Value)
		records = append(records, &kgo.Record{Topic: sink, Partition: each.Partition, Value: []byte(value)})
	})
	if err := session.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return false, err
	}
	return session.End(ctx, end)
}
