package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/scon-project/scon/test/bed/lab"
)

// ReadResult reads a file that Result.WriteFile wrote, of an experiment of this
// package or one of the others.
func ReadResult(path string, others ...Experiment) (*Result, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	r, err := parseResult(content, others...)
	if err != nil {
		return nil, fmt.Errorf("read result %s: %w", path, err)
	}
	return r, nil
}

func parseResult(content []byte, others ...Experiment) (*Result, error) {
	var r Result
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, err
	}
	own := []Experiment{Quick, Short(ShortConnections), Cost}
	others = append(others, Churn(DefaultChurn), Scale(r.scale()), CPUs, Host, Cost.OfHost(), Cost.OfHost().OverIPv6())
	for _, e := range own {
		others = append(others, e, e.OverIPv6(), e.OverVXLAN())
		for _, kind := range lab.UplinkKinds() {
			others = append(others, e.OverUplink(kind))
		}
		for _, p := range Paths {
			others = append(others, e.on(&p))
		}
	}
	for _, e := range others {
		if e.Name == r.Experiment {
			r.modes, r.metrics, r.counted, r.pairs, r.against, r.table = e.Modes, e.metrics(), e.Counted, e.pairs(), e.Against, e.Table
			return &r, nil
		}
	}
	return nil, errors.New("it is not a result of scon bench")
}
