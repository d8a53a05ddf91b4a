package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the root of the module.
const root = "../.."

// A block is a session of a document.
type block struct {
	line   int // of its first command
	steps  []step
	notRun string // reason; "" for a block that runs here
	runBy  string // file that runs it instead, relative to root; "" if none does
}

// A step is a command and what it prints.
type step struct {
	line    int
	other   bool // on the other machine
	command string
	output  []string
}

var marker = regexp.MustCompile(`^<!-- (?:not run|run by ([^ :]+)): (.+) -->$`)

// parse returns the sessions of a document.
func parse(text string) (blocks []block, err error) {
	var within bool
	var before string // the latest line that is not empty
	for i, line := range strings.Split(text, "\n") {
		switch {
		case !within && line == "```console":
			within = true
			b := block{line: i + 2}
			if m := marker.FindStringSubmatch(before); m != nil {
				b.runBy, b.notRun = m[1], m[2]
			}
			blocks = append(blocks, b)
		case within && line == "```":
			within = false
		case within:
			if err := blocks[len(blocks)-1].add(line, i+1); err != nil {
				return nil, err
			}
		}
		if line != "" {
			before = line
		}
	}
	return blocks, nil
}

// add adds a line of a session.
func (b *block) add(line string, number int) error {
	if command, ok := strings.CutPrefix(line, "$ "); ok {
		b.steps = append(b.steps, step{line: number, command: command})
		return nil
	}
	if command, ok := strings.CutPrefix(line, "other$ "); ok {
		b.steps = append(b.steps, step{line: number, other: true, command: command})
		return nil
	}
	if len(b.steps) == 0 {
		return fmt.Errorf("line %d: output without a command: %s", number, line)
	}
	last := &b.steps[len(b.steps)-1]
	if more, ok := strings.CutPrefix(line, "> "); ok && len(last.output) == 0 {
		last.command += "\n" + more
	} else {
		last.output = append(last.output, line)
	}
	return nil
}

var (
	literalOrNumber = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+|\.\.\.|[█░]+|\d+(?:[.,]\d+)*|\s+`)
	zero            = regexp.MustCompile(`^[0.,]+$`)
	progress        = regexp.MustCompile(`(?m)^ *\d+ %  .*\n`) // of cli.Progress
	wholeNumber     = `(\d+(?:[.,]\d+)*|-\d+\.\d+)`            // what was measured may be below 0
)

// match says how what a command printed differs from what the document shows, "" if not.
func match(want []string, got string) string {
	var pattern strings.Builder
	var zeros []bool // of each number, whether it has to be 0
	for _, line := range want {
		if strings.TrimSpace(line) == "..." {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		line = strings.TrimSpace(line)
		end := 0
		pattern.WriteString(`[ \t]*`)
		for _, at := range literalOrNumber.FindAllStringIndex(line, -1) {
			word := line[at[0]:at[1]]
			pattern.WriteString(regexp.QuoteMeta(line[end:at[0]]))
			end = at[1]
			switch {
			case word == "...":
				pattern.WriteString(`.*`)
			case strings.Trim(word, "█░") == "":
				pattern.WriteString(`[█░]+`)
			case strings.TrimSpace(word) == "":
				pattern.WriteString(`[ \t]+`)
			case strings.Count(word, ".") == 3, at[0] > 0 && isLetter(line[at[0]-1]):
				pattern.WriteString(regexp.QuoteMeta(word)) // an address, or a part of a name
			default:
				pattern.WriteString(wholeNumber)
				zeros = append(zeros, zero.MatchString(word))
			}
		}
		pattern.WriteString(regexp.QuoteMeta(line[end:]) + `[ \t]*\n`)
	}
	got = progress.ReplaceAllString(strings.ReplaceAll(got, "\r\n", "\n"), "")
	if got != "" && !strings.HasSuffix(got, "\n") {
		got += "\n"
	}
	numbers := regexp.MustCompile(`^` + pattern.String() + `$`).FindStringSubmatch(got)
	if numbers == nil {
		return "other text"
	}
	for i, mustBeZero := range zeros {
		if zero.MatchString(numbers[i+1]) != mustBeZero {
			return fmt.Sprintf("number %d is %s", i+1, numbers[i+1])
		}
	}
	return ""
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' }

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		want, got string
		equal     bool
	}{
		{"express 12 of 1,300 packets, lost 0", "express   7 of 9 packets, lost 0", true},
		{"express 12 of 1,300 packets, lost 0", "express 7 of 9 packets, lost 1", false},
		{"express 12", "express 0", false},
		{"adds 0.54 us", "adds -0.66 us", true},
		{"lost 3", "lost -3", false},
		{"docker0 172.17.0.2:41000", "docker0 172.17.0.2:55", true},
		{"docker0 172.17.0.2:41000", "docker0 172.17.0.3:55", false},
		{"docker0", "docker1", false},
		{"a\n...\nz 1.5 ms", "a\nb\nc\nz 20 ms", true},
		{"a\n...\nz", "a\nz", true},
		{"a\n...", "b", false},
		{"web ...", "web 123 x", true},
		{"██░ 60 %", "███ 100 %", true},
		{"", "something", false},
		{"web", "web\nmore", false},
	} {
		var want []string
		if c.want != "" {
			want = strings.Split(c.want, "\n")
		}
		if diff := match(want, c.got); (diff == "") != c.equal {
			t.Errorf("%q beside %q: %q", c.want, c.got, diff)
		}
	}
}

func TestParse(t *testing.T) {
	blocks, err := parse("text\n\n```console\n$ a\nprinted\nother$ b\n> c\n```\n\n<!-- run by some/file: it takes systemd -->\n```console\n$ d\n```\n")
	got := fmt.Sprintf("%+v", blocks)
	if want := "[{line:4 steps:[{line:4 other:false command:a output:[printed]} {line:6 other:true command:b\nc output:[]}] notRun: runBy:}" +
		" {line:12 steps:[{line:12 other:false command:d output:[]}] notRun:it takes systemd runBy:some/file}]"; got != want || err != nil {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
	if _, err := parse("```console\nprinted\n```\n"); err == nil {
		t.Error("output without a command is accepted")
	}
}

// documents returns all documents of the project.
func documents(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/guides/*.md", "lab/*.md", "lab/docs/*.md", "lab/results/*.md", "test/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	return files
}

// Sessions that do not run here are in the file that they name.
func TestRunElsewhere(t *testing.T) {
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks, err := parse(string(text))
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, b := range blocks {
			if b.runBy == "" {
				continue
			}
			test, err := os.ReadFile(filepath.Join(root, b.runBy))
			if err != nil {
				t.Errorf("%s:%d: %v", file, b.line, err)
			}
			for _, s := range b.steps {
				if command := strings.TrimPrefix(s.command, "sudo "); !strings.Contains(string(test), command) {
					t.Errorf("%s:%d: %s does not run %q", file, s.line, b.runBy, command)
				}
			}
		}
	}
}
