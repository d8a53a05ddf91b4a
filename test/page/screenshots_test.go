package page

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// talk has both ends of connections exchange datagrams until ctx ends, each at a pace of
// its own.
func talk(ctx context.Context, all []*scontest.Connection) (wait func()) {
	var talking sync.WaitGroup
	for i, c := range all {
		tick := time.NewTicker(time.Duration(i%5+1) * 2 * time.Millisecond)
		talking.Go(func() {
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					_ = c.Ping() // one that is lost is sent again
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return talking.Wait
}

// most is the size of a picture of the documents, in bytes.
const most = 200 << 10

// TestScreenshots makes the pictures of docs/web.md in the folder SCON_SCREENSHOTS.
func TestScreenshots(t *testing.T) {
	folder := os.Getenv("SCON_SCREENSHOTS")
	if folder == "" {
		t.Skip("makes pictures, with SCON_SCREENSHOTS")
	}
	browser := chromium(t)
	b := scontest.NewExpress(t, scontest.Layout{Containers: 4, Prefix: "shop-"})
	var all []*scontest.Connection
	for i := range 24 {
		n := i%4 + 1
		switch i % 3 {
		case 0:
			all = append(all, b.Outgoing("udp", n))
		case 1:
			all = append(all, b.Outgoing("tcp", n))
		case 2:
			all = append(all, b.Connect("udp", lab.Container(n), lab.Container(n%4+1), netip.AddrPortFrom(lab.ContainerAddr(n%4+1), 0)))
		}
	}
	for n := range 4 {
		all = append(all, b.Incoming("udp", n+1))
	}
	ctx, cancel := context.WithCancel(context.Background())
	wait := talk(ctx, all)
	t.Cleanup(func() { cancel(); wait() })

	base, token := serve(t, b.Daemon)
	page := open(t, browser)
	run := func(actions ...chromedp.Action) {
		t.Helper()
		if err := chromedp.Run(page, actions...); err != nil {
			t.Fatal(err)
		}
	}
	scheme := func(name string) chromedp.Action {
		return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}})
	}
	run(chromedp.EmulateViewport(1400, 1000), chromedp.Navigate(base+"/#token="+token), chromedp.WaitVisible("table[aria-label=Connections]"))
	time.Sleep(25 * time.Second)
	b.Sh(lab.Device, fmt.Sprintf("iptables -I FORWARD -p udp -s %s -m limit --limit 1000/s -j RETURN", lab.ContainerAddr(4)))
	time.Sleep(20 * time.Second)
	const explain = `[...document.querySelectorAll("table[aria-label=Connections] tbody tr")].find((r) => r.innerText.includes("wire")).click()`
	run(chromedp.Evaluate(explain, nil), chromedp.WaitVisible("aside dl"))
	const talk = `document.querySelector(".map").closest("details")`
	for _, picture := range []struct {
		name, scheme  string
		width, height int64
		top           string // what is at the top
	}{
		{"light", "light", 1280, 1100, "document.body"}, {"dark", "dark", 1280, 1100, "document.body"}, {"phone", "light", 390, 844, "document.body"},
		{"talk", "light", 1280, 640, talk}, {"explanation", "light", 1280, 800, `document.querySelector("aside")`},
	} {
		run(chromedp.EmulateViewport(picture.width, picture.height), scheme(picture.scheme),
			chromedp.Evaluate(`scrollTo(0, `+picture.top+`.getBoundingClientRect().top + scrollY - 60)`, nil))
		time.Sleep(2 * time.Second)
		var shot []byte
		run(chromedp.CaptureScreenshot(&shot))
		small := reduce(t, shot)
		if len(small) > most {
			t.Errorf("%s takes %d bytes, %d at most", picture.name, len(small), most)
		}
		if err := os.WriteFile(filepath.Join(folder, "web-"+picture.name+".png"), small, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// reduce encodes a picture again with its 256 most frequent colors.
func reduce(t *testing.T, shot []byte) []byte {
	t.Helper()
	all, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(all.At(x, y)).(color.RGBA) }
	pixels := make(map[color.RGBA]int)
	size := all.Bounds()
	for y := size.Min.Y; y < size.Max.Y; y++ {
		for x := size.Min.X; x < size.Max.X; x++ {
			pixels[at(x, y)]++
		}
	}
	var palette color.Palette
	for c := range pixels {
		palette = append(palette, c)
	}
	slices.SortFunc(palette, func(a, b color.Color) int { return cmp.Compare(pixels[b.(color.RGBA)], pixels[a.(color.RGBA)]) })
	palette = palette[:min(256, len(palette))]
	index := make(map[color.RGBA]uint8)
	for c := range pixels {
		index[c] = uint8(palette.Index(c))
	}
	small := image.NewPaletted(size, palette)
	for y := size.Min.Y; y < size.Max.Y; y++ {
		for x := size.Min.X; x < size.Max.X; x++ {
			small.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	var text bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&text, small); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}
