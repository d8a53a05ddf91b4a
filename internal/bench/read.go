package bench

import (
	"encoding/json"
	"fmt"
	"os"
)

// ReadResult reads a file that Result.WriteFile wrote.
func ReadResult(path string) (*Result, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	var r Result
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, fmt.Errorf("read result %s: %w", path, err)
	}
	for _, e := range []Experiment{Quick, Short(ShortConnections)} {
		if e.Name == r.Experiment {
			r.modes, r.metrics = e.Modes, e.metrics()
			return &r, nil
		}
	}
	return nil, fmt.Errorf("read result %s: no experiment %q", path, r.Experiment)
}
