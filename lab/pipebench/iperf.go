package pipebench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// iperfProgram is an unmodified TCP program.
const iperfProgram = "iperf3"

const iperfMessage = 128 << 10

// iperfReport is the part of iperf3's report that is used here.
type iperfReport struct {
	End struct {
		Received struct {
			Rate float64 `json:"bits_per_second"`
		} `json:"sum_received"`
	}
}

// takeIperf has iperf3 send for a second, after a second in which the connection is
// attached and TCP's window grows.
func takeIperf(ctx context.Context, b *bed, m mode) (map[string]float64, error) {
	if m.transport != "tcp" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, port := b.address(m, 1)
	server, err := b.start(ctx, m, 1, iperfProgram, nil, "--server", "--one-off", "--forceflush",
		"--port", fmt.Sprint(port), "--affinity", b.cpu(1))
	if err != nil {
		return nil, err
	}
	defer server.kill()
	for line := ""; !strings.Contains(line, "listening"); {
		if line, err = server.out.ReadString('\n'); err != nil {
			return nil, errors.Join(fmt.Errorf("%s does not listen: it wrote %q", iperfProgram, line), server.end(nil))
		}
	}
	omit := "1"
	if b.options.small {
		omit = "0"
	}
	client, err := b.start(ctx, m, 2, iperfProgram, nil, "--client", b.ip(m, 1).String(), "--port", fmt.Sprint(port), "--json",
		"--length", fmt.Sprint(iperfMessage), "--omit", omit, "--time", "1", "--affinity", b.cpu(2))
	if err != nil {
		return nil, err
	}
	defer client.kill()
	said, err := io.ReadAll(client.out)
	if err := errors.Join(err, client.end(nil), server.end(nil)); err != nil {
		return nil, fmt.Errorf("%w: %s", err, said)
	}
	var r iperfReport
	if err := json.Unmarshal(said, &r); err != nil {
		return nil, fmt.Errorf("read the report of %s: %w", iperfProgram, err)
	}
	return map[string]float64{"iperf3_128k_gbps": r.End.Received.Rate / 8e9}, nil
}
