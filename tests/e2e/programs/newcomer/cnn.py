"""A CNN as tutorials have it: workers that load, a validation each epoch, a schedule, Adadelta, Dropout."""

import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    images, labels = torch.rand(64, 1, 16, 16), torch.randint(10, (64,))
    training = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(1152, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(3):
        model.train()
        for batch, target in training:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            print(epoch, loss.item().hex())
        model.eval()
        with torch.no_grad():
            print("right", (model(images).argmax(1) == labels).sum().item())
        schedule.step()
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
