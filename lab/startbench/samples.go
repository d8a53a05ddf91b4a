package startbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/contention"
)

// takeStart starts all containers at once.
func takeStart(ctx context.Context, b *bed, m Mode) (bench.Sample, error) {
	r, values, err := b.measureStart(ctx, Command{Count: b.options.Count}, true)
	if err != nil {
		return bench.Sample{}, errors.Join(err, b.empty(context.WithoutCancel(ctx)))
	}
	detail, err := json.Marshal(timelines(r))
	if err != nil {
		return bench.Sample{}, err
	}
	return bench.Sample{Values: values, Detail: detail}, b.empty(ctx)
}

// measureStart starts containers and reads all meters.
func (b *bed) measureStart(ctx context.Context, c Command, fill bool) (r Report, values map[string]float64, err error) {
	if _, err := b.launcher.do(ctx, Command{Do: DoPrepare, Count: c.Count}); err != nil {
		return r, nil, err
	}
	if fill {
		if err := b.fill(ctx, c.Count); err != nil {
			return r, nil, err
		}
	}
	prepared, err := kernelMemory()
	if err != nil {
		return r, nil, err
	}
	before, err := b.read()
	if err != nil {
		return r, nil, err
	}
	if b.locks != nil {
		if err := b.locks.Reset(); err != nil {
			return r, nil, err
		}
	}
	c.Do = DoStart
	if r, err = b.launcher.do(ctx, c); err != nil {
		return r, nil, err
	}
	after, err := b.read()
	if err != nil {
		return r, nil, err
	}
	values = startValues(r)
	if b.locks != nil {
		counted, err := b.locks.Read()
		if err != nil {
			return r, nil, err
		}
		addLocks(values, counted)
	}
	up, err := kernelMemory()
	values["cpu_s"] = (after.cpu - before.cpu).Seconds()
	if b.agent != nil {
		values["agent_cpu_s"] = (after.agent - before.agent).Seconds()
	}
	if came := after.came - before.came; came > 0 {
		values["pooled"] = float64(after.taken-before.taken) / float64(came)
	}
	values["kernel_kib"] = float64(up-b.kernel) / float64(c.Count)
	values["prepared_kib"] = float64(prepared-b.kernel) / float64(c.Count)
	return r, values, err
}

// addLocks adds the lock contention to the values.
func addLocks(values map[string]float64, c contention.Counted) {
	values["rtnl_waits"] = float64(c.RTNL.Waits)
	values["rtnl_wait_ms"] = milliseconds(int64(c.RTNL.Waited))
	values["rtnl_longest_ms"] = milliseconds(int64(c.RTNL.Longest))
	values["spin_waits"] = float64(c.Spin.Waits)
	values["spin_wait_ms"] = milliseconds(int64(c.Spin.Waited))
	values["mutex_wait_ms"] = milliseconds(int64(c.Mutex.Waited))
}

// startValues returns the values that the launcher measures.
func startValues(r Report) map[string]float64 {
	values := map[string]float64{}
	took := map[string][]float64{}
	var last int64
	for _, c := range r.Containers {
		for _, s := range c.Stages {
			took[s.Name] = append(took[s.Name], milliseconds(s.End-s.Begin))
			last = max(last, s.End)
		}
	}
	values["total_ms"] = milliseconds(last - r.Begun)
	for _, stage := range Stages {
		if len(took[stage]) > 0 {
			values[strings.ToLower(stage)+"_ms"] = mean(took[stage])
		}
	}
	addQuantiles(values, "add", took[StageAdd])
	return values
}

// addQuantiles adds NAME_p50_ms and NAME_p99_ms to the values.
func addQuantiles(values map[string]float64, name string, took []float64) {
	if len(took) > 0 {
		values[name+"_p50_ms"] = bench.Quantile(0.5, took)
		values[name+"_p99_ms"] = bench.Quantile(0.99, took)
	}
}

func mean(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

func milliseconds(ns int64) float64 { return float64(ns) / 1e6 }

// takeAdd calls ADD for existing namespaces, without containers.
func takeAdd(ctx context.Context, b *bed, m Mode) (s bench.Sample, err error) {
	s.Values = map[string]float64{}
	if m.Network == NetworkNone || m.OCI {
		return s, nil
	}
	for _, parallel := range []int{1, 4} {
		if err := b.fill(ctx, addCount); err != nil {
			return s, err
		}
		r, err := b.launcher.do(ctx, Command{Do: DoAdd, Count: addCount, Parallel: parallel})
		if err != nil {
			return s, err
		}
		addQuantiles(s.Values, fmt.Sprintf("add%d", parallel), stageTimes(r, StageAdd))
		if err := b.host.settle(); err != nil {
			return s, err
		}
	}
	return s, nil
}

func stageTimes(r Report, stage string) (took []float64) {
	for _, c := range r.Containers {
		for _, s := range c.Stages {
			if s.Name == stage {
				took = append(took, milliseconds(s.End-s.Begin))
			}
		}
	}
	return took
}

// takeSustained starts so many containers that the pool is empty for most of them.
func takeSustained(ctx context.Context, b *bed, m Mode) (bench.Sample, error) {
	n := sustainedTimes * b.options.Count
	_, values, err := b.measureStart(ctx, Command{Count: n, Parallel: sustainedWorkers}, false)
	if err != nil {
		return bench.Sample{}, errors.Join(err, b.empty(context.WithoutCancel(ctx)))
	}
	rate := float64(n) / (values["total_ms"] / 1e3)
	own := map[string]float64{"sustained_per_s": rate}
	if pooled, ok := values["pooled"]; ok {
		own["sustained_pooled"] = pooled
	}
	return bench.Sample{Values: own}, b.empty(ctx)
}

// takeQuiet starts all containers from a pool in its idle state: after a burst and a
// time without demand.
func takeQuiet(ctx context.Context, b *bed, m Mode) (bench.Sample, error) {
	burst := func() (map[string]float64, error) {
		_, values, err := b.measureStart(ctx, Command{Count: b.options.Count}, false)
		return values, errors.Join(err, b.empty(context.WithoutCancel(ctx)))
	}
	if _, err := burst(); err != nil {
		return bench.Sample{}, err
	}
	select {
	case <-ctx.Done():
		return bench.Sample{}, context.Cause(ctx)
	case <-time.After(quietTime):
	}
	values, err := burst()
	if err != nil {
		return bench.Sample{}, err
	}
	own := map[string]float64{"quiet_total_ms": values["total_ms"]}
	if pooled, ok := values["pooled"]; ok {
		own["quiet_pooled"] = pooled
	}
	return bench.Sample{Values: own}, nil
}
