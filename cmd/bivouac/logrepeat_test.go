package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A Nomad that is away made 72 warnings a minute, one a call.
func TestLog_AFaultHasALineAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := newLogger(&out, "text", slog.LevelInfo).With("node", "n1")
		for i := range 72 * 3 {
			log.With("sandbox", fmt.Sprint("s", i)).Warn("step failed",
				"error", fmt.Errorf("Get http://nomad/v1/job/s%d: %w", i, errors.New("connection refused")))
			if i == 100 {
				log.Warn("step failed", "error", errors.New("another: no such image"))
				log.Info("request served", "route", "GET /alive")
			}
			time.Sleep(time.Minute / 72)
		}
		time.Sleep(time.Minute)
		log.Info("request served", "route", "GET /alive")
		text := out.String()
		if n := strings.Count(text, "connection refused"); n != 4 {
			t.Errorf("%d lines of the fault in three minutes, want 4:\n%s", n, text)
		}
		counted := 4
		for _, left := range regexp.MustCompile(`not_logged=(\d+)`).FindAllStringSubmatch(text, -1) {
			n, err := strconv.Atoi(left[1])
			if counted += n; err != nil {
				t.Error(err)
			}
		}
		if counted != 72*3 {
			t.Errorf("%d of %d lines are counted:\n%s", counted, 72*3, text)
		}
		if strings.Count(text, "no such image") != 1 || strings.Count(text, "request served") != 2 {
			t.Errorf("other lines are left out:\n%s", text)
		}
	})
}

// At DEBUG every line is there.
func TestLog_AtDebugNothingIsLeftOut(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := newLogger(&out, "json", slog.LevelDebug)
	for range 5 {
		log.Warn("step failed", "error", errors.New("away"))
	}
	if n := strings.Count(out.String(), "step failed"); n != 5 {
		t.Errorf("%d of 5 lines:\n%s", n, out.String())
	}
}
