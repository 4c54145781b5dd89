package driver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const pollInterval = 10 * time.Millisecond

// Assignment is the partitions that a member of a group has; the library's callbacks change it.
type Assignment struct {
	mutex sync.Mutex
	held  map[int32]bool
}

// Add partitions.
func (a *Assignment) Add(partitions []int32) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.held == nil {
		a.held = map[int32]bool{}
	}
	for _, partition := range partitions {
		a.held[partition] = true
	}
}

// Remove partitions.
func (a *Assignment) Remove(partitions []int32) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for _, partition := range partitions {
		delete(a.held, partition)
	}
}

// Held partitions in order.
func (a *Assignment) Held() []int32 {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	held := []int32{}
	for partition := range a.held {
		held = append(held, partition)
	}
	slices.Sort(held)
	return held
}

// TwoMembers joins one member, then another, then ends the first; join starts a member and returns how to end it.
func TwoMembers(ctx context.Context, partitions int, join func(*Assignment) (func(), error)) (Rebalance, error) {
	var moves Rebalance
	var first, second Assignment
	leaveFirst, err := join(&first)
	if err != nil {
		return moves, err
	}
	leaveFirst = sync.OnceFunc(leaveFirst)
	defer leaveFirst()
	if err := wait(ctx, func() bool { moves.Alone = first.Held(); return len(moves.Alone) == partitions }, &first); err != nil {
		return moves, err
	}
	leaveSecond, err := join(&second)
	if err != nil {
		return moves, err
	}
	defer leaveSecond()
	isShared := func() bool {
		moves.First, moves.Second = first.Held(), second.Held()
		both := slices.Concat(moves.First, moves.Second)
		slices.Sort(both)
		return len(moves.First) > 0 && len(moves.Second) > 0 && len(both) == partitions && len(slices.Compact(both)) == partitions
	}
	if err := wait(ctx, isShared, &first, &second); err != nil {
		return moves, err
	}
	leaveFirst()
	err = wait(ctx, func() bool { moves.Left = second.Held(); return len(moves.Left) == partitions }, &second)
	return moves, err
}

func wait(ctx context.Context, condition func() bool, members ...*Assignment) error {
	for !condition() {
		select {
		case <-ctx.Done():
			text := ""
			for _, member := range members {
				text += fmt.Sprint(member.Held())
			}
			return fmt.Errorf("%w; assigned: %s", ctx.Err(), text)
		case <-time.After(pollInterval):
		}
	}
	return nil
}
