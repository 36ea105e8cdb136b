package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"
)

// metricsServer answers GET /metrics; without a listener it does nothing.
type metricsServer struct {
	listener net.Listener
	server   *http.Server
}

// listenMetrics takes the port, so that a port in use is an error before anything is mounted. A daemon that replaces
// another shares its port until that one lets go of it.
func (o MountOptions) listenMetrics(replacing bool) (*metricsServer, error) {
	if o.MetricsAddr == "" {
		return &metricsServer{}, nil
	}
	addr := o.MetricsAddr
	if !replacing {
		probe, err := net.Listen("tcp", addr) // fails also where a shared port is in use
		if err != nil {
			return nil, fmt.Errorf("--metrics-addr: %w", err)
		}
		addr = probe.Addr().String() // with the port that was chosen for 0
		_ = probe.Close()
	}
	shared := net.ListenConfig{Control: reusePort}
	l, err := shared.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics-addr: %w", err)
	}
	return &metricsServer{listener: l}, nil
}

func reusePort(_, _ string, c syscall.RawConn) error {
	var err error
	controlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(controlErr, err)
}

// addr is where it listens, "" for nowhere.
func (m *metricsServer) addr() string {
	if m.listener == nil {
		return ""
	}
	return m.listener.Addr().String()
}

func (m *metricsServer) serve(from prometheus.Gatherer, logger *slog.Logger) {
	if m.listener == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelError),
	}))
	m.server = &http.Server{
		Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
	go func() {
		if err := m.server.Serve(m.listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("metrics are no longer served", "error", err)
		}
	}()
}

// close also ends requests under way: a scrape must not keep the daemon from ending.
func (m *metricsServer) close() {
	switch {
	case m.server != nil:
		_ = m.server.Close()
	case m.listener != nil:
		_ = m.listener.Close()
	}
}
