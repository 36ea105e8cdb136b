package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"overmind-fs/fs/pressure"
	"overmind-fs/fs/store"
)

// watchPressure sets the triggers for memory pressure, or says why there are none.
func (o MountOptions) watchPressure() (*pressure.Watcher, error) {
	if o.Pressure == 0 {
		return &pressure.Watcher{}, errors.New("switched off")
	}
	w, err := pressure.Open(store.PressureFiles(), o.Pressure)
	if err != nil {
		return &pressure.Watcher{}, err
	}
	return w, nil
}

// housekeep runs what evicts without being asked, until stop is called.
func housekeep(ctx context.Context, s *store.Store, w *pressure.Watcher, logger *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.ExpireIdle(ctx) })
	if len(w.Paths()) > 0 {
		running.Go(func() {
			if err := w.Watch(ctx, func(path string) { s.Relieve(path) }); err != nil {
				logger.Warn("memory pressure is no longer noticed", "error", err)
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}
