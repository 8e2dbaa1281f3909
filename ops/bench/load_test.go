package bench

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"
)

// together has clients make n calls in all, each the next one when the last has returned.
func together(t *testing.T, n, clients int, call func(*http.Client) (time.Duration, error)) (all durations) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var ended sync.WaitGroup
	for range clients {
		ended.Go(func() {
			for range n / clients {
				took, err := call(client)
				mu.Lock()
				if all = append(all, took); err != nil {
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	ended.Wait()
	return all
}

// rate is how many calls a second the clients make.
func rate(t *testing.T, n, clients int, call func(*http.Client) (time.Duration, error)) (float64, durations) {
	t.Helper()
	begin := time.Now()
	all := together(t, n, clients, call)
	return float64(len(all)) / time.Since(begin).Seconds(), all
}

// request makes a call that reads an answer to its end. body is nil for a GET.
func request(url, key string, body []byte) func(*http.Client) (time.Duration, error) {
	return func(client *http.Client) (time.Duration, error) {
		method := http.MethodGet
		if body != nil {
			method = http.MethodPost
		}
		r, err := http.NewRequest(method, url, bytes.NewReader(body))
		if err != nil {
			return 0, err
		}
		r.Header.Set("X-Session-API-Key", key)
		r.Header.Set("Content-Type", "application/json")
		begin := time.Now()
		res, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		if err == nil && res.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", res.StatusCode)
		}
		return time.Since(begin), err
	}
}
