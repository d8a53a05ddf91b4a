package startbench

import (
	"context"
	"errors"
	"time"
)

type agent struct{}

func (b *bed) startAgent(ctx context.Context, m Mode, network string) (*agent, error) {
	return nil, errors.New("not built yet")
}
func (a *agent) used() (time.Duration, error) { return 0, nil }
func (a *agent) stop() error                  { return nil }
func (b *bed) fill(ctx context.Context, n int) error {
	return nil
}
func (b *bed) sconList(m Mode) object           { return nil }
func (b *bed) sconOrder(m Mode, o *Order) error { return nil }
