package latency

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/scon-project/scon/lab/output"
)

// worstPackets is the number of packets of a run that are shown over time, as in
// the paper's Fig. 8.
const worstPackets = 5000

// histogram returns the latencies in nanoseconds, up to a minute, with three
// significant digits.
func histogram(s Samples) *hdrhistogram.Histogram {
	h := hdrhistogram.New(1, 60e9, 3)
	for _, p := range s.Packets {
		h.RecordValue(max(1, min(p.LatencyNS, 60e9))) // clamped to the range
	}
	if len(s.Packets) > 0 {
		h.SetStartTimeMs(s.Packets[0].InNS / 1e6)
		h.SetEndTimeMs(s.Packets[len(s.Packets)-1].OutNS / 1e6)
	}
	return h
}

// writeRaw writes every packet of a round to DIR/raw/MODE-ROUND.csv.gz.
func writeRaw(dir, mode string, round int, s Samples) error {
	var file bytes.Buffer
	zip := gzip.NewWriter(&file)
	w := bufio.NewWriter(zip)
	fmt.Fprintf(w, "number,due_ns,in_ns,out_ns,latency_ns,causes\n")
	for _, p := range s.Packets {
		fmt.Fprintf(w, "%d,%d,%d,%d,%d,%s\n", p.Number, p.DueNS-s.Schedule.Start, p.InNS-s.Schedule.Start,
			p.OutNS-s.Schedule.Start, p.LatencyNS, p.Causes)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	return output.Write(filepath.Join(dir, rawDir, fmt.Sprintf("%s-%d.csv.gz", mode, round)), file.Bytes())
}

// rawDir is the folder with the packets of all rounds.
const rawDir = "raw"

// writeWorst writes the data of a mode's worst round that is drawn: MODE.hgrm and
// MODE.hlog for HdrHistogram's tools, and MODE-worst.csv.
func writeWorst(dir, mode string, s Samples) error {
	h := histogram(s)
	var hgrm, hlog, worst bytes.Buffer
	if _, err := h.PercentilesPrint(&hgrm, 5, 1000); err != nil {
		return fmt.Errorf("write %s.hgrm: %w", mode, err)
	}
	log := hdrhistogram.NewHistogramLogWriter(&hlog)
	for _, write := range []func() error{
		func() error { return log.OutputComment("[latencies in nanoseconds]") },
		log.OutputLogFormatVersion,
		log.OutputLegend,
		func() error { return log.OutputIntervalHistogram(h) },
	} {
		if err := write(); err != nil {
			return fmt.Errorf("write %s.hlog: %w", mode, err)
		}
	}
	fmt.Fprintf(&worst, "at_s,latency_us,causes\n")
	for _, p := range s.worst(worstPackets) {
		fmt.Fprintf(&worst, "%.6f,%.3f,%s\n", float64(p.DueNS-s.Schedule.Start)/1e9, float64(p.LatencyNS)/1000, p.Causes)
	}
	for name, content := range map[string][]byte{
		mode + ".hgrm": hgrm.Bytes(), mode + ".hlog": hlog.Bytes(), mode + "-worst.csv": worst.Bytes(),
	} {
		if err := output.Write(filepath.Join(dir, name), content); err != nil {
			return err
		}
	}
	return nil
}

// makeDirs creates the folders of the files.
func makeDirs(dir string) error {
	return os.MkdirAll(filepath.Join(dir, rawDir), 0o755)
}
