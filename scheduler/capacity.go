package scheduler

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// capacityInterval is how often the leader reads the backend's capacity, for the metrics.
const capacityInterval = 15 * time.Second

const (
	hertz    = 1e6     // of a MHz
	mebibyte = 1 << 20 // bytes
)

// capacityMetrics are what an autoscaler of the backend's clients needs. The leader alone sets them;
// the others show 0.
type capacityMetrics struct {
	clients, cpu, cpuFree, memory, memoryFree prometheus.Gauge
	waiting, cpuWaiting, memoryWaiting        prometheus.Gauge
}

func newCapacityMetrics(factory promauto.Factory) *capacityMetrics {
	gauge := func(name, help string) prometheus.Gauge {
		return factory.NewGauge(prometheus.GaugeOpts{Name: name, Help: help + " The leader reads it every 15 " +
			"seconds; on other nodes it is 0."})
	}
	return &capacityMetrics{
		clients:    gauge("bivouac_capacity_clients", "Nomad clients that take sandboxes."),
		cpu:        gauge("bivouac_capacity_cpu_hertz", "CPU of the Nomad clients that take sandboxes."),
		cpuFree:    gauge("bivouac_capacity_cpu_free_hertz", "CPU of these clients that no job has reserved."),
		memory:     gauge("bivouac_capacity_memory_bytes", "Memory of the Nomad clients that take sandboxes."),
		memoryFree: gauge("bivouac_capacity_memory_free_bytes", "Memory of these clients that no job has reserved."),
		waiting: gauge("bivouac_sandboxes_waiting_for_capacity",
			"Sandboxes that can't start because no client has room."),
		cpuWaiting:    gauge("bivouac_capacity_waiting_cpu_hertz", "CPU that the waiting sandboxes ask for."),
		memoryWaiting: gauge("bivouac_capacity_waiting_memory_bytes", "Memory that the waiting sandboxes ask for."),
	}
}

func (m *capacityMetrics) set(c Capacity) {
	m.clients.Set(float64(c.Clients))
	m.cpu.Set(hertz * float64(c.CPU))
	m.cpuFree.Set(hertz * float64(c.CPUFree))
	m.memory.Set(mebibyte * float64(c.Memory))
	m.memoryFree.Set(mebibyte * float64(c.MemoryFree))
}

func (m *capacityMetrics) setWaiting(count int, cpu, memory int64) {
	m.waiting.Set(float64(count))
	m.cpuWaiting.Set(hertz * float64(cpu))
	m.memoryWaiting.Set(mebibyte * float64(memory))
}

// followCapacity keeps the metrics of the backend's capacity until ctx ends. What can't be read
// stays as it was: whether the backend answers is another metric.
func (l *loop) followCapacity(ctx context.Context, backend CapacityReader) error {
	m := l.s.metrics.capacity
	defer m.set(Capacity{})
	defer m.setWaiting(0, 0, 0)
	for {
		l.countWaiting(m)
		if c, err := backend.Capacity(ctx); err == nil {
			m.set(c)
		} else if ctx.Err() == nil {
			l.log.Debug("reading the clients' capacity failed", "error", err)
		}
		if !sleep(ctx, capacityInterval) {
			return nil
		}
	}
}

// countWaiting counts the sandboxes for which no client has room.
func (l *loop) countWaiting(m *capacityMetrics) {
	var ids []string
	l.mu.Lock()
	for id, t := range l.tracks {
		if !t.unplacedSince.IsZero() {
			ids = append(ids, id)
		}
	}
	l.mu.Unlock()
	v := l.s.store.View()
	count, cpu, memory := 0, int64(0), int64(0)
	for _, id := range ids {
		if sb := v.SandboxAny(id); sb != nil {
			count, cpu, memory = count+1, cpu+int64(sb.Template.CPU), memory+int64(sb.Template.Memory)
		}
	}
	m.setWaiting(count, cpu, memory)
}
