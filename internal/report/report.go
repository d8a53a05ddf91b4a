// Package report collects what is needed to find out why SCON does not do on a machine what
// it should, and writes it redacted into an archive: doctor, the services' answers, rules,
// kernel, devices with their hooks, metrics, settings and logs. It needs no running service,
// waits for none that hangs, asks nothing outside the machine, and changes nothing.
package report

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/redact"
	"github.com/scon-project/scon/internal/state"
)

// partLimit is how long the collection of one part may take.
const partLimit = 10 * time.Second

// Options are what a report depends on.
type Options struct {
	Services []Service
	StateDir string
	Config   string // file of the settings
	Netns    string // that is examined, "" for this one
	Names    bool   // leave containers' names
	Version  any    // document about this program

	// Limit is how long the collection of one part may take, 0 for the default.
	Limit time.Duration
	// Progress is told of each part before it is collected.
	Progress func(done, total int, next string)
}

// Service is one of SCON's services.
type Service struct {
	Name   string // "express"
	Unit   string // of systemd
	State  state.Service
	Socket string
	Client *api.Service
}

// Document is what `scon report --json` prints; the archive has it as index.json, without
// file and bytes.
type Document struct {
	File  string `json:"file,omitempty"`  // the archive
	Bytes int64  `json:"bytes,omitempty"` // its size
	Made  string `json:"made"`            // time, by RFC 3339
	Names bool   `json:"names"`           // containers' names are in it
	Parts []Part `json:"parts"`           // files, in their order
}

// Part is one file of the archive.
type Part struct {
	File    string `json:"file"`              // name in the archive
	What    string `json:"what"`              // what it holds
	Bytes   int    `json:"bytes"`             // 0: it is not in the archive
	Missing string `json:"missing,omitempty"` // why it is missing, or incomplete
}

// form is what a part's content is redacted as.
type form func(r *redact.Redactor, content []byte) []byte

func asText(r *redact.Redactor, b []byte) []byte    { return []byte(r.Text(string(b))) }
func asRules(r *redact.Redactor, b []byte) []byte   { return []byte(r.Rules(string(b))) }
func asMetrics(r *redact.Redactor, b []byte) []byte { return []byte(r.Metrics(string(b))) }
func asJSON(r *redact.Redactor, b []byte) []byte    { return r.JSON(b) }

// asProcess leaves the names of the kernel's functions in which threads wait.
func asProcess(r *redact.Redactor, b []byte) []byte {
	for _, m := range kernelFunction.FindAllSubmatch(b, -1) {
		r.Keep(string(m[1]))
	}
	return asText(r, b)
}

var kernelFunction = regexp.MustCompile(`(?m)^(?:\[<[0-9a-f]+>\]|thread \d+ waits in) (\w[\w.]*)(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?$`)

// source collects the content of a part. Both its results may be set.
type source struct {
	file, what string
	form       form
	collect    func(ctx context.Context) ([]byte, error)
}

// Write collects all parts and writes them to the archive at path, which only its owner may
// read. An archive that was there is replaced when the new one is complete.
func Write(path string, o Options) (d Document, err error) {
	if o.Limit == 0 {
		o.Limit = partLimit
	}
	made := time.Now().Truncate(time.Second) // an archive rounds up, and its files would be of the future
	d = Document{Made: made.Format(time.RFC3339), Names: o.Names, Parts: []Part{}}
	f, err := os.CreateTemp(filepath.Dir(path), ".scon-report-*")
	if err != nil {
		return d, fmt.Errorf("write the report: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	a := newArchive(f, made)
	c := newCollector(o)
	sources := c.sources()
	for i, s := range sources {
		o.Progress(i, len(sources), s.what)
		content, missing := within(o.Limit, s.collect)
		p := Part{File: s.file, What: s.what}
		if missing != nil {
			p.Missing = c.redactor.Text(missing.Error())
		}
		switch {
		case len(content) == 0 && missing == nil:
			p.Missing = "there is nothing"
		case len(content) > 0:
			content = s.form(c.redactor, content)
			p.Bytes = len(content)
			if err := a.add(s.file, content); err != nil {
				return d, err
			}
		}
		d.Parts = append(d.Parts, p)
	}
	index, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return d, fmt.Errorf("write the report: %w", err)
	}
	if err := a.add("index.json", index); err != nil {
		return d, err
	}
	if err := a.close(); err != nil {
		return d, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return d, fmt.Errorf("write the report: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return d, fmt.Errorf("write the report: %w", err)
	}
	d.File, d.Bytes = path, info.Size()
	return d, nil
}

// within calls collect, and gives up after limit: a system call that hangs ends with the
// program.
func within(limit time.Duration, collect func(context.Context) ([]byte, error)) ([]byte, error) {
	type result struct {
		content []byte
		err     error
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan result, 1)
	go func() {
		content, err := collect(ctx)
		done <- result{content, err}
	}()
	select {
	case r := <-done:
		if errors.Is(r.err, context.DeadlineExceeded) {
			r.err = tooLong(limit)
		}
		return r.content, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done: // a command has been ended, and has said something
		return r.content, tooLong(limit)
	case <-time.After(limit / 4):
		return nil, tooLong(limit)
	}
}

func tooLong(limit time.Duration) error { return fmt.Errorf("it took longer than %v", limit) }

// archive is a compressed tar file with one directory.
type archive struct {
	file *os.File
	zip  *gzip.Writer
	tar  *tar.Writer
	made time.Time
}

func newArchive(f *os.File, made time.Time) *archive {
	zip := gzip.NewWriter(f)
	return &archive{f, zip, tar.NewWriter(zip), made}
}

func (a *archive) add(name string, content []byte) error {
	err := a.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: "scon-report/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: a.made,
	})
	if err == nil {
		_, err = a.tar.Write(content)
	}
	if err != nil {
		return fmt.Errorf("write the report: %s: %w", name, err)
	}
	return nil
}

func (a *archive) close() error {
	if err := errors.Join(a.tar.Close(), a.zip.Close(), a.file.Sync(), a.file.Close()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// indented returns a document as JSON with one field a line.
func indented(document any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(document)
	return b.Bytes(), err
}
