package top

import (
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// escapeTime is how long the rest of a sequence may take to follow its escape character.
// Without it that was the key.
const escapeTime = 50 * time.Millisecond

// Run shows the view until the user leaves it. What then waits for a key or a snapshot ends
// with the process.
func (m *Model) Run() error {
	t, err := openTerminal(os.Stdin, os.Stdout)
	if err != nil {
		return fmt.Errorf("show the view: %w", err)
	}
	defer t.close()
	v := view{Model: m, terminal: t, messages: make(chan any)}
	if err := v.drive(); err != nil {
		return fmt.Errorf("show the view: %w", err)
	}
	return nil
}

// view is a model that a terminal shows.
type view struct {
	*Model
	terminal *terminal
	messages chan any
	in       input            // typed, and no whole key yet
	escape   <-chan time.Time // when in ends
	ended    bool
}

// drive applies messages, and shows what they change.
func (v *view) drive() error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGWINCH, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)
	typed := make(chan []byte)
	go v.terminal.read(typed)
	v.start(v.take())
	v.resize()
	for !v.ended {
		if err := v.terminal.draw(v.lines()); err != nil {
			return err
		}
		select {
		case s := <-signals:
			if s != unix.SIGWINCH {
				return nil
			}
			v.resize()
		case b, ok := <-typed:
			if !ok {
				return nil
			}
			v.in = append(v.in, b...)
			v.press(false)
		case <-v.escape:
			v.press(true)
		case message := <-v.messages:
			v.apply(message)
		}
	}
	return nil
}

func (v *view) apply(message any) {
	if _, is := message.(quit); is {
		v.ended = true
		return
	}
	if c := v.update(message); c != nil {
		v.start(c)
	}
}

// start runs a command beside the loop, which gets its message.
func (v *view) start(c command) { go func() { v.messages <- c() }() }

// press applies the keys that are typed. With last no rest of one follows.
func (v *view) press(last bool) {
	for message, ok := v.in.next(last); ok; message, ok = v.in.next(last) {
		v.apply(message)
	}
	if v.escape = nil; len(v.in) > 0 {
		v.escape = time.After(escapeTime)
	}
}

func (v *view) resize() {
	if width, height, ok := v.terminal.size(); ok {
		v.apply(resized{width, height})
	}
}
